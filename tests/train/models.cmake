# Tests of the trainer's models: in float, as they train, and in double, where gradients can be
# compared with differences.
function(thinwire_add_model_test name source library)
  if(TARGET thinwire_train)
    add_executable(test_${name} ${source} support/gradient.c ${ARGN})
    target_link_libraries(test_${name} PRIVATE ${library} thinwire_check Threads::Threads)
    set_target_properties(test_${name} PROPERTIES
                          RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    add_test(NAME ${name} COMMAND test_${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 300)
  else()
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo
             "SKIP: no CBLAS was found when this was configured; 'make deps' installs it")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIP:")
  endif()
endfunction()

thinwire_add_model_test(layers_forward train/test_layers_forward.c thinwire_train)
thinwire_add_model_test(layers_forward_double train/test_layers_forward.c thinwire_train_double)
thinwire_add_model_test(layers train/test_layers.c thinwire_train_double train/layer_cases.c)
thinwire_add_model_test(models train/test_models.c thinwire_train)
set(counted test_models)
# Differences over whole models take a sanitizer minutes; the others take it 15 and 33 seconds.
if(NOT THINWIRE_SANITIZE)
  thinwire_add_model_test(models_double train/test_models.c thinwire_train_double)
  list(APPEND counted test_models_double)
endif()

# Counts and fails what models allocate.
if(TARGET thinwire_train)
  foreach(test IN LISTS counted)
    foreach(call malloc calloc aligned_alloc)
      target_link_options(${test} PRIVATE LINKER:--wrap=${call})
    endforeach()
  endforeach()
endif()
