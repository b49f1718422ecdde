#include <type_traits>

#ifdef __AVX2__
#include "vector.inl"

const li::VectorKernels* li::vector_avx2() { return &kTable; }
#else
#include "vector.h"

const li::VectorKernels* li::vector_avx2() { return nullptr; }
#endif
