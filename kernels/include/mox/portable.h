// One word that lets plain C++ and device code share a function.
#pragma once
#if defined(__CUDACC__)
#define MOX_HD __host__ __device__
#else
#define MOX_HD
#endif
