// Which instruction set's kernels run: the best that this processor and operating system support.
#pragma once

#include "matmul.h"
#include "vector.h"

namespace li {

struct Isa {
    const char* name;
    const MatmulKernels* matmul;
    const VectorKernels* vector;
};

// The best usable entry, or the one called `name` (null: best). Null if there is none of that name or it cannot run.
const Isa* find_isa(const char* name);

// Entry `index` of those that can run here, from portable to best; null past the end.
const Isa* usable_isa(int index);

} // namespace li
