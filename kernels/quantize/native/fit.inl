// The search for one scale, or for a scale and an offset, of a run of n weights. Squared errors are weighted throughout.
#pragma once

#include "block.inl"
#include "levels.inl"

namespace {

// Sums over a run for levels q that were chosen for its weights x: with them the best scale is xq / qq.
struct ScaleSums {
    V xq, qq;
};

template <class Levels>
LI_INLINE ScaleSums scale_sums(const V* x, const V* weight, int n, V inverse_scale) {
    ScaleSums sums{};
    for (int i = 0; i < n; i++) {
        const V q = Levels::nearest(x[i] * inverse_scale);
        const V wq = weight[i] * q;
        sums.xq += wq * x[i];
        sums.qq += wq * q;
    }
    return sums;
}

// The weighted squared error of a run with a given scale.
template <class Levels>
LI_INLINE V scale_error(const V* x, const V* weight, int n, V scale) {
    const V inverse_scale = inverse(scale);
    V error{};
    for (int i = 0; i < n; i++) {
        const V rest = x[i] - scale * Levels::nearest(x[i] * inverse_scale);
        error += weight[i] * (rest * rest);
    }
    return error;
}

template <class Levels>
LI_INLINE V offset_error(const V* x, const V* weight, int n, V scale, V offset) {
    const V inverse_scale = inverse(scale);
    V error{};
    for (int i = 0; i < n; i++) {
        const V rest = x[i] - (scale * Levels::nearest((x[i] - offset) * inverse_scale) + offset);
        error += weight[i] * (rest * rest);
    }
    return error;
}

// The weight of largest magnitude, with its sign.
LI_INLINE V extreme(const V* x, int n) {
    V found = x[0];
    for (int i = 1; i < n; i++) found = select(magnitude(x[i]) > magnitude(found), x[i], found);
    return found;
}

// The scale of a run. Each anchor is a level that the extreme weight is put on to choose all levels; for these the best
// scale is in closed form. The best of them is improved by choosing levels and scale in turn.
template <class Levels, int count>
LI_INLINE V fit_scale(const V* x, const V* weight, int n, const float (&anchors)[count], int rounds) {
    const V inverse_extreme = inverse(extreme(x, n));
    V best_gain{}, best{};
    const auto consider = [&](V inverse_scale) {
        const ScaleSums sums = scale_sums<Levels>(x, weight, n, inverse_scale);
        const V scale = sums.xq * inverse(sums.qq);
        const V gain = scale * sums.xq;
        const I better = gain > best_gain * 1.0000005f; // not by rounding: equal parts of a block get equal scales
        best_gain = select(better, gain, best_gain);
        best = select(better, scale, best);
    };
    for (int i = 0; i < count; i++) consider(anchors[i] * inverse_extreme);
    for (int round = 0; round < rounds; round++) consider(inverse(best));
    return best;
}

// Sums over a run for levels q from 0 to `high`, x counted from `centre` on.
struct OffsetSums {
    V q, qq, xq;
};

template <int high>
LI_INLINE OffsetSums offset_sums(const V* x, const V* weight, int n, V centre, V inverse_scale, V offset) {
    OffsetSums sums{};
    for (int i = 0; i < n; i++) {
        const V centred = x[i] - centre;
        const V q = Integers<0, high>::nearest((centred - offset) * inverse_scale);
        const V wq = weight[i] * q;
        sums.q += wq;
        sums.qq += wq * q;
        sums.xq += wq * centred;
    }
    return sums;
}

struct Line {
    V scale, offset;
};

// Where fit_line's lowest and highest level may start.
constexpr float kStarts[][2] = {{0, 0}, {0, -0.03f}, {0, 0.03f}, {0, 0.06f}, {-0.03f, 0}, {-0.03f, -0.03f}, {-0.03f, 0.03f}, {-0.03f, 0.06f}, {0.03f, 0}, {0.03f, -0.03f}, {0.03f, 0.03f}, {0.03f, 0.06f}, {0.06f, 0}, {0.06f, -0.03f}, {0.06f, 0.03f}, {0.06f, 0.06f}, {0, 0.1f}, {0.1f, 0}, {0.1f, 0.1f}, {0, -0.06f}, {-0.06f, 0}, {0.1f, 0.05f}, {0.05f, 0.1f}};

// Scale and offset of a run whose levels are 0 to `high`. Starts put the lowest and the highest level a part of the
// range inside of the smallest and largest weight (or outside); then as in fit_scale. With `below_zero` the offset is
// kept from being positive.
template <int high, bool below_zero, int count>
LI_INLINE Line fit_line(const V* x, const V* weight, int n, const float (&starts)[count][2], int rounds) {
    V low = x[0], top = x[0], sum_w{}, sum_x{};
    for (int i = 0; i < n; i++) {
        low = min(low, x[i]);
        top = max(top, x[i]);
        sum_w += weight[i];
        sum_x += weight[i] * x[i];
    }
    V centre{};
    if (below_zero) {
        low = min(low, V{});
        top = max(top, V{});
    } else { // so that sums of large, nearly equal weights do not cancel
        centre = 0.5f * low + 0.5f * top;
        sum_x = V{};
        for (int i = 0; i < n; i++) sum_x += weight[i] * (x[i] - centre);
        low -= centre;
        top -= centre;
    }
    const V range = top - low;
    Line best{range * (1.0f / high), low};
    V best_gain = all(-3.0e38f);
    const auto consider = [&](V scale, V offset) {
        const OffsetSums sums = offset_sums<high>(x, weight, n, centre, inverse(scale), offset);
        const V determinant = sum_w * sums.qq - sums.q * sums.q;
        const V inverse_determinant = inverse(determinant);
        V new_scale = (sum_w * sums.xq - sum_x * sums.q) * inverse_determinant;
        V new_offset = (sums.qq * sum_x - sums.q * sums.xq) * inverse_determinant;
        if (below_zero) {
            const I above = new_offset > 0.0f;
            new_scale = select(above, sums.xq * inverse(sums.qq), new_scale);
            new_offset = select(above, V{}, new_offset);
        }
        // Σ w x² minus the error
        const V gain = 2.0f * (new_scale * sums.xq + new_offset * sum_x) -
                       (new_scale * (new_scale * sums.qq + 2.0f * (new_offset * sums.q)) + new_offset * new_offset * sum_w);
        const I better = (determinant > 1e-5f * (sum_w * sums.qq)) & (new_scale > 0.0f) & (gain > best_gain);
        best_gain = select(better, gain, best_gain);
        best.scale = select(better, new_scale, best.scale);
        best.offset = select(better, new_offset, best.offset);
    };
    for (int i = 0; i < count; i++) {
        const V offset = low + starts[i][0] * range;
        const V reach = range * (1.0f - starts[i][0] - starts[i][1]);
        consider(reach * (1.0f / high), offset);
    }
    for (int round = 0; round < rounds; round++) consider(best.scale, best.offset);
    best.offset += centre;
    return best;
}

} // namespace
