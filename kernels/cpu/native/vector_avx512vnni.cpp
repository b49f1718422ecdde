#include <type_traits>

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#include "vector.inl"

const li::VectorKernels* li::vector_avx512vnni() { return &kTable; }
#else
#include "vector.h"

const li::VectorKernels* li::vector_avx512vnni() { return nullptr; }
#endif
