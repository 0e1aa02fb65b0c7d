# CMAKE_CUDA_COMPILER from -DCMAKE_CUDA_COMPILER, $CUDACXX, $CUDA_HOME, PATH, /usr/local/cuda, or the nvidia-cuda-nvcc wheel
# of ${Python_EXECUTABLE}, the first there is. Included before CUDA is enabled, so that its absence is one line.
if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER $ENV{CUDACXX})
endif()
if(NOT CMAKE_CUDA_COMPILER)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import nvidia.cu13 as n; print(list(n.__path__)[0])"
    OUTPUT_VARIABLE _wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(_asked $ENV{MOXTRACE_NVCC})
  if(_asked STREQUAL "wheel")
    find_program(CMAKE_CUDA_COMPILER nvcc PATHS ${_wheel}/bin NO_DEFAULT_PATH)
  else()
    find_program(CMAKE_CUDA_COMPILER nvcc
      HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin PATHS /usr/local/cuda/bin ${_wheel}/bin)
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  # NOTICE keeps its line; FATAL_ERROR would wrap it
  message(NOTICE "moxtrace-kernels: no nvcc on PATH, in CUDACXX or in CUDA_HOME; expected CUDA 12.8 or newer. \
From the package index: MOXTRACE_NVCC=wheel pip install ./kernels. \
The reference alone, without a compiler: MOXTRACE_CUDA=0 pip install ./kernels")
  message(FATAL_ERROR "no CUDA compiler")
endif()
