#include "kernels.inl"

const li::quantize::Kernels* li::quantize::kernels_portable() { return &kTable; }
