# libthinwire_mpi and libthinwire_nccl, static and shared: companions of libthinwire, so that
# libthinwire itself needs neither MPI nor NCCL. Included from src/CMakeLists.txt.
#
# thinwire_add_companion(NAME SOURCES LIBRARY...): thinwire_NAME from SOURCES, linked to LIBRARY.
function(thinwire_add_companion what sources)
  foreach(kind IN LISTS kinds)
    set(suffix "")
    if(kind STREQUAL shared)
      set(suffix _shared)
    endif()
    set(name thinwire_${what}${suffix})
    thinwire_add_library(${name} ${kind} ${sources})
    add_library(thinwire::${what}_${kind} ALIAS ${name})
    set_target_properties(${name} PROPERTIES EXPORT_NAME ${what}_${kind})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PUBLIC thinwire${suffix} ${ARGN})
  endforeach()
  add_library(thinwire::${what} ALIAS ${name}) # shared if there is one, as thinwire::thinwire
endfunction()

if(THINWIRE_HAS_MPI)
  set(mpi_sources transport/transport_mpi.c transport/frame.c base/crc32c.c)
  thinwire_add_companion(mpi "${mpi_sources}" MPI::MPI_C)
endif()

if(THINWIRE_HAS_NCCL)
  add_library(thinwire_nccl_found INTERFACE)
  target_include_directories(thinwire_nccl_found SYSTEM INTERFACE ${NCCL_INCLUDE_DIR}
                             ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(thinwire_nccl_found INTERFACE ${NCCL_LIBRARY})
  thinwire_add_companion(nccl backend/cuda/transport_nccl.c $<BUILD_INTERFACE:thinwire_nccl_found>)
endif()
