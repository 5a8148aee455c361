# What `cmake --install` installs. Included from the top CMakeLists.txt.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/thinwire)

# .pc files tell where they are, so that an installation can be moved. Directories that were given as
# absolute paths stay where they are.
set(THINWIRE_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" up "${up}")
  set(THINWIRE_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(dir LIBDIR INCLUDEDIR)
  set(THINWIRE_PC_${dir} "${CMAKE_INSTALL_${dir}}")
  string(REPLACE " " "\\ " THINWIRE_PC_${dir} "${THINWIRE_PC_${dir}}")
  if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(THINWIRE_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  endif()
endforeach()
set(THINWIRE_PRIVATE_LIBS "-lpthread -lm")
if(THINWIRE_HAS_CUDA) # whoever links the static library knows where CUDA is
  string(PREPEND THINWIRE_PRIVATE_LIBS "-lcudart_static -lstdc++ -ldl -lrt ")
endif()

# thinwire_install_library(NAME EXPORT FILE): libNAME of the kinds that are built, its .pc file, and
# how CMake finds it. Companions have an export of their own: programs that do not use them need not
# find what they need.
function(thinwire_install_library name export file)
  set(targets "")
  if(THINWIRE_HAS_STATIC)
    list(APPEND targets ${name})
  endif()
  if(THINWIRE_HAS_SHARED)
    list(APPEND targets ${name}_shared)
  endif()
  install(TARGETS ${targets} EXPORT ${export}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ${export} NAMESPACE thinwire:: FILE ${file} DESTINATION ${package_dir})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  install(FILES ${PROJECT_SOURCE_DIR}/include/${name}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()

thinwire_install_library(thinwire thinwire thinwire-targets.cmake)
install(FILES ${PROJECT_SOURCE_DIR}/include/thinwire_sim.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(THINWIRE_HAS_MPI)
  thinwire_install_library(thinwire_mpi thinwire_mpi thinwire-mpi-targets.cmake)
endif()
if(THINWIRE_HAS_NCCL)
  thinwire_install_library(thinwire_nccl thinwire_nccl thinwire-nccl-targets.cmake)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/thinwire-config.cmake.in
                              ${PROJECT_BINARY_DIR}/thinwire-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/thinwire-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/thinwire-config.cmake
              ${PROJECT_BINARY_DIR}/thinwire-config-version.cmake
        DESTINATION ${package_dir})

if(THINWIRE_HAS_COMMAND)
  install(TARGETS thinwire_cli DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(THINWIRE_HAS_MPI)
    install(TARGETS thinwire_cli_mpi DESTINATION ${CMAKE_INSTALL_LIBDIR}/thinwire)
  endif()
  install(FILES ${PROJECT_SOURCE_DIR}/packaging/thinwire.bash
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME thinwire)
endif()

# Man pages: those of the command are what it prints, so they need a command that runs here.
set(man ${PROJECT_BINARY_DIR}/man)
set(man_command "")
if(THINWIRE_HAS_COMMAND AND NOT CMAKE_CROSSCOMPILING)
  set(man_command $<TARGET_FILE:thinwire_cli>)
endif()
add_custom_command(OUTPUT ${man}/man3/libthinwire.3
  COMMAND ${PROJECT_SOURCE_DIR}/scripts/make-man "${man_command}" ${man}
  DEPENDS ${man_command} scripts/make-man include/thinwire.h include/thinwire_sim.h
          include/thinwire_mpi.h include/thinwire_nccl.h
  COMMENT "Writing man pages" VERBATIM)
add_custom_target(man ALL DEPENDS ${man}/man3/libthinwire.3)
install(DIRECTORY ${man}/ DESTINATION ${CMAKE_INSTALL_MANDIR})

install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
        FILES_MATCHING PATTERN *.md PATTERN *.c PATTERN *.py PATTERN *.sh PATTERN *.yaml
        PATTERN logs EXCLUDE PATTERN curves EXCLUDE PATTERN __pycache__ EXCLUDE)
if(THINWIRE_HAS_TRAINER) # the images are in the command
  install(FILES ${PROJECT_SOURCE_DIR}/data/fashion-mnist/LICENSE
          DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME LICENSE.fashion-mnist)
endif()
