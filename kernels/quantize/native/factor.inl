// H = R Rᵀ with an upper triangular R: Cholesky's algorithm from the last row to the first, in double precision. Every
// number is computed in one order, whatever the instruction set and the number of threads.
#pragma once

#include <cmath>
#include <cstdint>

#include "lanes.inl"

namespace {

constexpr int kDoubles = kLanes / 2;
typedef double D __attribute__((vector_size(8 * kDoubles)));
constexpr int kFactorBlock = 64;
constexpr int kFactorTile = 4 * kDoubles; // columns whose sums are kept in registers

// The lower triangular factor L of the first `columns` columns of a, which is [rows, stride] and symmetric, in place. A pivot
// below `least` (rounding of the sums that made the matrix) is raised to it.
void factor_panel(double* a, int64_t stride, int64_t rows, int columns, double least) {
    for (int j = 0; j < columns; j++) {
        double pivot = a[j * stride + j];
        for (int k = 0; k < j; k++) pivot -= a[j * stride + k] * a[j * stride + k];
        const double diagonal = std::sqrt(pivot > least ? pivot : least), inverse_diagonal = 1.0 / diagonal;
        a[j * stride + j] = diagonal;
        for (int64_t i = j + 1; i < (rows < columns ? rows : columns); i++) {
            double rest = a[i * stride + j];
            for (int k = 0; k < j; k++) rest -= a[i * stride + k] * a[j * stride + k];
            a[i * stride + j] = rest * inverse_diagonal;
        }
    }
}

// The rows [first, last) of L below the panel's own triangle.
void solve_panel(double* a, int64_t stride, int64_t first, int64_t last, int columns) {
    for (int64_t i = first; i < last; i++)
        for (int j = 0; j < columns; j++) {
            double rest = a[i * stride + j];
            for (int k = 0; k < j; k++) rest -= a[i * stride + k] * a[j * stride + k];
            a[i * stride + j] = rest * (1.0 / a[j * stride + j]);
        }
}

// Subtracts L Lᵀ of a panel from what follows it: rows [first, last) and columns up to the row (and a few more) of `rest`.
// `panel` holds the rows of L behind the triangle, `turned` [columns, turned_stride] the same, turned around.
void subtract_panel(double* rest, const double* panel, int64_t stride, const double* turned, int64_t turned_stride,
                    int columns, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++)
        for (int64_t j = 0; j <= i; j += kFactorTile) {
            D tile[4];
            std::memcpy(tile, rest + i * stride + j, sizeof tile);
            for (int k = 0; k < columns; k++) {
                const double l = panel[i * stride + k];
                const double* t = turned + k * turned_stride + j;
                for (int part = 0; part < 4; part++) {
                    D factors;
                    std::memcpy(&factors, t + part * kDoubles, sizeof factors);
                    tile[part] -= l * factors;
                }
            }
            std::memcpy(rest + i * stride + j, tile, sizeof tile);
        }
}

} // namespace
