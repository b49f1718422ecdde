// Which instruction sets can run here.
#pragma once

#include "kernels.h"

namespace li::quantize {

// Entry `index` of those that can run, from portable to best; null past the end.
const Kernels* usable_kernels(int index);

// Uses the entry of that name from now on (null: the best), and returns whether it can run.
bool choose_kernels(const char* name);

// The entry in use: the best, unless another one was chosen.
const Kernels* chosen_kernels();

} // namespace li::quantize
