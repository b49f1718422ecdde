#include "matmul.h"

namespace li {

const MatmulKernels* matmul_avx512vnni() {
    return nullptr;
}

} // namespace li
