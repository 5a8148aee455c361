# libthinwire_mpi and libthinwire_nccl, static and shared: companions of libthinwire, so that
# libthinwire itself needs neither MPI nor NCCL. Included from src/CMakeLists.txt.
#
# thinwire_add_companion(NAME SOURCES LIBRARY...): thinwire_NAME from SOURCES, linked to LIBRARY.
function(thinwire_add_companion what sources)
  foreach(kind static shared)
    string(TOUPPER ${kind} KIND)
    set(suffix "")
    if(kind STREQUAL shared)
      set(suffix _shared)
    endif()
    set(name thinwire_${what}${suffix})
    add_library(${name} ${KIND} ${sources})
    add_library(thinwire::${what}${suffix} ALIAS ${name})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PUBLIC thinwire${suffix} ${ARGN}
                          PRIVATE $<BUILD_INTERFACE:thinwire_flags>)
    set_target_properties(${name} PROPERTIES OUTPUT_NAME thinwire_${what}
                          EXPORT_NAME ${what}${suffix}
                          VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                          ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                          LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  endforeach()

  # A separate export: programs that do not use it need not find it.
  install(TARGETS thinwire_${what} thinwire_${what}_shared EXPORT thinwire_${what}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/include/thinwire_${what}.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT thinwire_${what} NAMESPACE thinwire:: FILE thinwire-${what}-targets.cmake
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/thinwire_${what}.pc.in
                 ${CMAKE_BINARY_DIR}/thinwire_${what}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/thinwire_${what}.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

if(MPI_C_FOUND)
  thinwire_add_companion(mpi "transport/transport_mpi.c;transport/frame.c;base/crc32c.c" MPI::MPI_C)
endif()

if(CMAKE_CUDA_COMPILER AND NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
  add_library(thinwire_nccl_found INTERFACE)
  target_include_directories(thinwire_nccl_found SYSTEM INTERFACE ${NCCL_INCLUDE_DIR}
                             ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(thinwire_nccl_found INTERFACE ${NCCL_LIBRARY})
  thinwire_add_companion(nccl backend/cuda/transport_nccl.c $<BUILD_INTERFACE:thinwire_nccl_found>)
endif()
