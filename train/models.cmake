# thinwire_train: the models of the trainer, on whatever CBLAS there is.
if(PKG_CONFIG_FOUND)
  pkg_check_modules(CBLAS QUIET IMPORTED_TARGET GLOBAL openblas)
endif()
if(CBLAS_FOUND)
  set(cblas PkgConfig::CBLAS)
else()
  find_path(CBLAS_HEADER cblas.h PATH_SUFFIXES openblas)
  find_library(CBLAS_LIBRARY NAMES openblas cblas)
  if(NOT CBLAS_HEADER OR NOT CBLAS_LIBRARY)
    message(STATUS "CBLAS not found: no models to train. 'make deps' installs it.")
    return()
  endif()
  set(cblas ${CBLAS_LIBRARY})
endif()

set(models
    batch_check.c
    columns.c
    conv_block.c
    encoder.c
    gemm.c
    layer_attention.c
    layer_avgpool.c
    layer_batch_norm.c
    layer_conv2d.c
    layer_cross_entropy.c
    layer_embedding.c
    layer_gelu.c
    layer_layer_norm.c
    layer_linear.c
    layer_lstm.c
    layer_maxpool.c
    layer_relu.c
    layer_residual.c
    model.c
    model_bert.c
    model_cnn.c
    model_lstm.c
    model_resnet20.c
    model_table.c
    model_vgg16.c
    patches.c
    plan.c
    team.c
    vector.c
    winograd.c
    winograd_tiles.c)

# Once in float, and once in double for the tests that compare gradients with differences.
foreach(name thinwire_train thinwire_train_double)
  add_library(${name} STATIC ${models})
  target_include_directories(${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  if(CBLAS_HEADER)
    target_include_directories(${name} PRIVATE ${CBLAS_HEADER})
  endif()
  target_link_libraries(${name} PUBLIC ${cblas} Threads::Threads m PRIVATE thinwire_flags)
endforeach()
target_compile_definitions(thinwire_train_double PUBLIC TRAIN_DOUBLE)
set_target_properties(thinwire_train_double PROPERTIES EXCLUDE_FROM_ALL ON)
