#ifdef __AVX2__
#include "kernels.inl"

const li::quantize::Kernels* li::quantize::kernels_avx2() { return &kTable; }
#else
#include "kernels.h"

const li::quantize::Kernels* li::quantize::kernels_avx2() { return nullptr; }
#endif
