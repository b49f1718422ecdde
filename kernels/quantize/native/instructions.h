// Which instruction sets can run here.
#pragma once

#include "kernels.h"

namespace li::quantize {

// Entry `index` of those that can run, from portable to best; null past the end.
const Kernels* usable_kernels(int index);

// The entry called `name` (null: the best); null if it cannot run.
const Kernels* find_kernels(const char* name);

} // namespace li::quantize
