#include <type_traits>

#include "vector.inl"

const li::VectorKernels* li::vector_portable() { return &kTable; }
