# The options of the build, and what comes of them. Included from the top CMakeLists.txt.
#
#   ON    it is built; configure stops if something is missing for it
#   OFF   it is left out, whatever an earlier configure found
#   AUTO  it is built where nothing is missing. In a project that has Thinwire as a subdirectory
#         AUTO means OFF, so that the project gets only what it asks for
# Anything else is refused. THINWIRE_HAS_<NAME> is the outcome, ON or OFF: the rest of the build asks
# for that alone, because cached results of find_package outlive a change of the option.

set(thinwire_settled "") # names, for the summary

function(thinwire_check_value name)
  if(NOT "${THINWIRE_${name}}" IN_LIST ARGN)
    list(JOIN ARGN ", " accepted)
    message(FATAL_ERROR "THINWIRE_${name} is '${THINWIRE_${name}}'. Accepted: ${accepted}.")
  endif()
endfunction()

# thinwire_switch(NAME HELP): an option that is ON or OFF, and OFF by default.
function(thinwire_switch name help)
  set(THINWIRE_${name} OFF CACHE BOOL "${help}")
  thinwire_check_value(${name} ON OFF)
endfunction()

# thinwire_option(NAME HELP): an option that is ON, OFF or AUTO. Sets THINWIRE_WANTS_<NAME>: whether
# it is worth looking for what it needs.
function(thinwire_option name help)
  set(THINWIRE_${name} AUTO CACHE STRING "${help}: ON, OFF or AUTO")
  set_property(CACHE THINWIRE_${name} PROPERTY STRINGS AUTO ON OFF)
  thinwire_check_value(${name} ON OFF AUTO)
  set(wants ${PROJECT_IS_TOP_LEVEL})
  if(NOT THINWIRE_${name} STREQUAL "AUTO")
    set(wants ${THINWIRE_${name}})
  endif()
  set(THINWIRE_WANTS_${name} ${wants} PARENT_SCOPE)
endfunction()

# thinwire_settle(NAME MISSING CONDITION...): set THINWIRE_HAS_<NAME> to whether it is wanted and the
# condition holds. If the option is ON and the condition does not hold, configure stops with the text
# MISSING. THINWIRE_WHY_<NAME> is the reason for OFF.
macro(thinwire_settle name missing)
  set(THINWIRE_HAS_${name} OFF)
  set(THINWIRE_WHY_${name} "")
  list(APPEND thinwire_settled ${name})
  if(NOT THINWIRE_WANTS_${name})
    set(THINWIRE_WHY_${name} "not asked for")
  elseif(${ARGN})
    set(THINWIRE_HAS_${name} ON)
  elseif(THINWIRE_${name} STREQUAL "ON")
    message(FATAL_ERROR "THINWIRE_${name} is ON, but ${missing}.")
  else()
    set(THINWIRE_WHY_${name} "${missing}")
  endif()
endmacro()

function(thinwire_print_summary)
  message(STATUS "Thinwire ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}. "
                 "Change a line with -DTHINWIRE_<NAME>=ON|OFF|AUTO")
  foreach(name IN LISTS thinwire_settled)
    string(SUBSTRING "${name}          " 0 10 padded)
    string(SUBSTRING "${THINWIRE_HAS_${name}} " 0 3 state)
    message(STATUS "  ${padded} ${state}  ${THINWIRE_WHY_${name}}")
  endforeach()
endfunction()

thinwire_switch(WERROR "Treat warnings as errors")
thinwire_switch(FUZZ "Build the libFuzzer targets (needs clang)")
thinwire_switch(DEMO "Leave out GPU code and tests, whatever the other options say: for make demo")
set(THINWIRE_SANITIZE "" CACHE STRING "Sanitizers for everything, for instance address,undefined")

thinwire_option(SHARED "Build the shared library; AUTO follows BUILD_SHARED_LIBS")
thinwire_option(STATIC "Build the static library; AUTO follows BUILD_SHARED_LIBS")
thinwire_option(CUDA "Build for NVIDIA GPUs")
thinwire_option(NCCL "Build libthinwire_nccl")
thinwire_option(MPI "Build libthinwire_mpi, and the command for mpirun")
thinwire_option(COMMAND "Build the thinwire command")
thinwire_option(JANSSON "JSON in the command")
thinwire_option(ZLIB "Data sets of the trainer")
thinwire_option(BLAS "Models of the trainer")
thinwire_option(TRAINER "`thinwire train` and `thinwire demo`")
thinwire_option(TESTS "Build the tests; AUTO follows BUILD_TESTING")
thinwire_option(INSTALL "Rules for `cmake --install`")
if(THINWIRE_DEMO)
  set(THINWIRE_WANTS_CUDA OFF)
  set(THINWIRE_WANTS_TESTS OFF)
endif()

# ---- libraries: both kinds, or the one that BUILD_SHARED_LIBS names. A project that has Thinwire as
# a subdirectory and names none gets the static one, as from any add_library

if(THINWIRE_SHARED STREQUAL "AUTO" AND DEFINED BUILD_SHARED_LIBS)
  set(THINWIRE_WANTS_SHARED ${BUILD_SHARED_LIBS})
endif()
if(THINWIRE_STATIC STREQUAL "AUTO")
  set(THINWIRE_WANTS_STATIC ON)
  if(BUILD_SHARED_LIBS)
    set(THINWIRE_WANTS_STATIC OFF)
  endif()
endif()
thinwire_settle(SHARED "" TRUE)
thinwire_settle(STATIC "" TRUE)
if(NOT THINWIRE_HAS_SHARED AND NOT THINWIRE_HAS_STATIC)
  message(FATAL_ERROR "Neither the shared nor the static library is to be built: "
                      "set THINWIRE_SHARED or THINWIRE_STATIC to ON.")
endif()

# ---- CUDA and NCCL

if(THINWIRE_WANTS_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE) # check_language would believe an earlier NOTFOUND
  endif()
  include(CheckLanguage)
  check_language(CUDA)
endif()
thinwire_settle(CUDA "nvcc is missing: put it on PATH" CMAKE_CUDA_COMPILER)
if(THINWIRE_HAS_CUDA)
  # Machine code for A100 and H100, and what later GPUs compile for themselves.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES "")
  if(THINWIRE_WANTS_NCCL)
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_DIR}/../lib)
  endif()
endif()
thinwire_settle(NCCL "CUDA or NCCL is missing"
                THINWIRE_HAS_CUDA AND NCCL_INCLUDE_DIR AND NCCL_LIBRARY)

# ---- MPI

if(THINWIRE_WANTS_MPI)
  find_package(MPI QUIET COMPONENTS C)
endif()
thinwire_settle(MPI "MPI is missing: 'make deps' installs it" MPI_C_FOUND)

# ---- the command and its trainer

find_package(PkgConfig QUIET)
thinwire_settle(COMMAND "" TRUE)
if(THINWIRE_WANTS_JANSSON AND PKG_CONFIG_FOUND)
  pkg_check_modules(JANSSON QUIET IMPORTED_TARGET jansson)
endif()
thinwire_settle(JANSSON "jansson is missing: 'make deps' installs it" TARGET PkgConfig::JANSSON)
if(THINWIRE_WANTS_ZLIB)
  find_package(ZLIB QUIET)
endif()
thinwire_settle(ZLIB "zlib is missing: 'make deps' installs it" ZLIB_FOUND)
if(THINWIRE_WANTS_BLAS)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(CBLAS QUIET IMPORTED_TARGET openblas)
  endif()
  if(TARGET PkgConfig::CBLAS)
    set(THINWIRE_CBLAS PkgConfig::CBLAS)
  else()
    find_path(CBLAS_HEADER cblas.h PATH_SUFFIXES openblas)
    find_library(CBLAS_LIBRARY NAMES openblas cblas)
    if(CBLAS_HEADER AND CBLAS_LIBRARY)
      set(THINWIRE_CBLAS ${CBLAS_LIBRARY})
    endif()
  endif()
endif()
thinwire_settle(BLAS "a CBLAS is missing: 'make deps' installs OpenBLAS" DEFINED THINWIRE_CBLAS)
thinwire_settle(TRAINER "it needs COMMAND, ZLIB and BLAS"
                THINWIRE_HAS_COMMAND AND THINWIRE_HAS_ZLIB AND THINWIRE_HAS_BLAS)

# ---- tests and installation

if(THINWIRE_TESTS STREQUAL "AUTO" AND DEFINED BUILD_TESTING AND NOT BUILD_TESTING)
  set(THINWIRE_WANTS_TESTS OFF)
endif()
if(THINWIRE_WANTS_TESTS AND PKG_CONFIG_FOUND)
  pkg_check_modules(CMOCKA QUIET IMPORTED_TARGET cmocka)
endif()
thinwire_settle(TESTS "cmocka is missing: 'make deps' installs it" TARGET PkgConfig::CMOCKA)
thinwire_settle(INSTALL "" TRUE)
