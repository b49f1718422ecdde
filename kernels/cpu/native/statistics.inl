// Sums over the inputs of matrix products, for calibration; see InputSums in vector.h. Included once per instruction set.
#include <algorithm>

namespace {

constexpr int kSide = 16;       // columns of a panel, and of a square of products
constexpr int kPanelRows = 256; // rows of the input that are copied at a time

void add_squares(const li::InputSums& sums, const float* x, int rows, int begin, int end) {
    for (int r = 0; r < rows; r++)
        for (int c = begin; c < end; c++) {
            const double value = x[size_t(r) * size_t(sums.cols) + size_t(c)];
            sums.squares[c] += value * value; // the product of two floats is exact in double
        }
}

// Columns [first, first + width) of some rows, side by side; a panel of fewer than kSide columns ends with zeros.
void copy_panel(const float* x, int cols, int rows, int first, int width, float* panel) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < kSide; c++)
            panel[r * kSide + c] = c < width ? x[size_t(r) * size_t(cols) + size_t(first + c)] : 0.0f;
}

// square[i][j] += a[r][i] * b[r][j], r ascending.
void add_square(const float* a, const float* b, int rows, float* square) {
    for (int top = 0; top < kSide; top += 4) {
        F8 low[4], high[4];
        for (int i = 0; i < 4; i++) {
            low[i] = F8::load(square + (top + i) * kSide);
            high[i] = F8::load(square + (top + i) * kSide + 8);
        }
        for (int r = 0; r < rows; r++) {
            const F8 left = F8::load(b + r * kSide), right = F8::load(b + r * kSide + 8);
            for (int i = 0; i < 4; i++) {
                const F8 factor = F8::all(a[r * kSide + top + i]);
                low[i] = fma(factor, left, low[i]);
                high[i] = fma(factor, right, high[i]);
            }
        }
        for (int i = 0; i < 4; i++) {
            low[i].store(square + (top + i) * kSide);
            high[i].store(square + (top + i) * kSide + 8);
        }
    }
}

// The products of a run of `width` columns from `first` on: those of the panels that are this thread's with all before.
void add_products(const float* x, int cols, int rows, int first, int width, float* gram, int thread, int threads) {
    float right[kPanelRows * kSide], left[kPanelRows * kSide], square[kSide * kSide];
    for (int j = thread * kSide; j < width; j += threads * kSide) {
        const int n = std::min(kSide, width - j);
        copy_panel(x, cols, rows, first + j, n, right);
        for (int i = 0; i <= j; i += kSide) {
            const int m = std::min(kSide, width - i);
            if (i < j) copy_panel(x, cols, rows, first + i, m, left);
            float* corner = gram + size_t(i) * size_t(width) + size_t(j);
            for (int u = 0; u < kSide; u++)
                for (int v = 0; v < kSide; v++)
                    square[u * kSide + v] = u < m && v < n ? corner[size_t(u) * size_t(width) + size_t(v)] : 0.0f;
            add_square(i < j ? left : right, right, rows, square);
            for (int u = 0; u < m; u++)
                for (int v = 0; v < n; v++) corner[size_t(u) * size_t(width) + size_t(v)] = square[u * kSide + v];
        }
    }
}

void add_statistics(const li::InputSums& sums, const float* x, int rows, int thread, int threads) {
    const int cols = sums.cols;
    add_squares(sums, x, rows, int(int64_t(cols) * thread / threads), int(int64_t(cols) * (thread + 1) / threads));
    if (!sums.gram) return;
    for (int r = 0; r < rows; r += kPanelRows) {
        float* gram = sums.gram;
        for (int first = 0; first < cols; first += sums.block) {
            const int width = std::min(sums.block, cols - first);
            add_products(x + size_t(r) * size_t(cols), cols, std::min(kPanelRows, rows - r), first, width, gram, thread,
                         threads);
            gram += size_t(width) * size_t(width);
        }
    }
}

} // namespace
