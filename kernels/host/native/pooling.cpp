// Sums of rows, for embeddings.
#include "api.h"

#include <cstdint>

// total[i] += rows[0][i] + rows[1][i] + ..., one after the other in double: however the rows of a text are divided
// between calls, the sums have the same bits. False if an argument is out of range.
LI_API bool li_add_rows(double* total, const float* rows, int32_t count, int32_t size) {
    if (total == nullptr || rows == nullptr || count < 0 || size < 1) return false;
    for (int32_t row = 0; row < count; ++row) {
        const float* x = rows + int64_t{row} * size;
        for (int32_t i = 0; i < size; ++i) total[i] += x[i];
    }
    return true;
}
