// What the functions that take rows of weights share.
#pragma once

#include "half.h"
#include "kernels.h"
#include "status.h"
#include "strips.h"

namespace li::quantize {

inline bool is_finite(float x) { return (float_bits(x) & 0x7f800000) != 0x7f800000; }

// The index of the first number that is NaN or infinite, or -1.
inline int64_t first_not_finite(const float* x, int64_t count) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < count; i++) bad |= !is_finite(x[i]);
    for (int64_t i = 0; bad && i < count; i++)
        if (!is_finite(x[i])) return i;
    return -1;
}

inline const Kernel* find_kernel(const Kernels& kernels, int type) {
    for (int i = 0; i < kernels.count; i++)
        if (kernels.kernels[i].type == type) return kernels.kernels + i;
    return nullptr;
}

// What went wrong in the first row where something did; `where` is that row.
inline int report(const Smallest& not_finite, const Smallest& too_large, int64_t* where) {
    if (not_finite.value() == Smallest::kNone && too_large.value() == Smallest::kNone) return kDone;
    const bool damaged = not_finite.value() != Smallest::kNone;
    *where = damaged ? not_finite.value() : too_large.value();
    return damaged ? kNotFinite : kTooLarge;
}

} // namespace li::quantize
