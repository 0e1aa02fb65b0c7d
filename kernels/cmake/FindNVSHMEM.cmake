# NVSHMEM from -DNVSHMEM_ROOT, $NVSHMEM_HOME, or the nvidia-nvshmem-cu* wheel of ${Python_EXECUTABLE}, the first there is.
# The wheel has neither a CMake package nor an unversioned libnvshmem_host.so, hence this file.
#
# Defines NVSHMEM::host, NVSHMEM::device, NVSHMEM_VERSION (of the headers), NVSHMEM_FROM_WHEEL.
set(NVSHMEM_FROM_WHEEL FALSE)
if(NVSHMEM_ROOT)
  set(_nvshmem ${NVSHMEM_ROOT})
elseif(DEFINED ENV{NVSHMEM_HOME})
  set(_nvshmem $ENV{NVSHMEM_HOME})
else()
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import nvidia.nvshmem as n; print(list(n.__path__)[0])"
    OUTPUT_VARIABLE _nvshmem OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_nvshmem)
    set(NVSHMEM_FROM_WHEEL TRUE)
  endif()
endif()

# another place than last time means another library: nothing is kept from an earlier search
foreach(_found NVSHMEM_INCLUDE_DIR NVSHMEM_DEVICE_LIBRARY NVSHMEM_HOST_LIBRARY)
  unset(${_found} CACHE)
endforeach()
find_path(NVSHMEM_INCLUDE_DIR nvshmemx.h PATHS ${_nvshmem} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(NVSHMEM_DEVICE_LIBRARY nvshmem_device PATHS ${_nvshmem} PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH)
find_library(NVSHMEM_HOST_LIBRARY NAMES libnvshmem_host.so.3 nvshmem_host PATHS ${_nvshmem} PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH)

set(NVSHMEM_VERSION "")
if(NVSHMEM_INCLUDE_DIR)
  file(READ ${NVSHMEM_INCLUDE_DIR}/non_abi/nvshmem_version.h _header)
  foreach(_part MAJOR MINOR PATCH)
    string(REGEX MATCH "NVSHMEM_VENDOR_${_part}_VERSION +([0-9]+)" _ "${_header}")
    list(APPEND NVSHMEM_VERSION ${CMAKE_MATCH_1})
  endforeach()
  list(JOIN NVSHMEM_VERSION "." NVSHMEM_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NVSHMEM
  REQUIRED_VARS NVSHMEM_INCLUDE_DIR NVSHMEM_DEVICE_LIBRARY NVSHMEM_HOST_LIBRARY
  VERSION_VAR NVSHMEM_VERSION
  REASON_FAILURE_MESSAGE "looked in '${_nvshmem}': pip install nvidia-nvshmem-cu13==3.4.5, or set NVSHMEM_HOME")

if(NVSHMEM_FOUND AND NOT TARGET NVSHMEM::host)
  add_library(NVSHMEM::host SHARED IMPORTED)
  set_target_properties(NVSHMEM::host PROPERTIES
    IMPORTED_LOCATION ${NVSHMEM_HOST_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NVSHMEM_INCLUDE_DIR})
  add_library(NVSHMEM::device STATIC IMPORTED)
  set_target_properties(NVSHMEM::device PROPERTIES
    IMPORTED_LOCATION ${NVSHMEM_DEVICE_LIBRARY}
    IMPORTED_LINK_INTERFACE_LANGUAGES CUDA
    INTERFACE_INCLUDE_DIRECTORIES ${NVSHMEM_INCLUDE_DIR})
endif()
