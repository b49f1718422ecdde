// The loop that byte-pair encoding and SentencePiece's bpe model share: the best pair of neighbours is merged
// until no pair can be (Sennrich et al. 2016, arXiv:1508.07909). O(n log n) in the length of the word.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace li {

class Merger {
  public:
    struct Symbol {
        uint32_t begin, end;    // bytes of the word; empty once merged into the symbol before
        int32_t previous, next; // -1 at the ends
    };

    void clear() {
        symbols_.clear();
        heap_.clear();
    }
    void add(uint32_t begin, uint32_t end) {
        const auto index = static_cast<int32_t>(symbols_.size());
        if (index > 0)
            symbols_.back().next = index;
        symbols_.push_back({begin, end, index - 1, -1});
    }

    // `cost(begin, middle, end, value)` says whether the symbols [begin, middle) and [middle, end) may merge, and at
    // which cost; the lowest merges first, the leftmost among equals.
    template <class Cost> void merge(Cost cost) {
        for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols_.size()); i++)
            consider(i, cost);
        while (!heap_.empty()) {
            std::pop_heap(heap_.begin(), heap_.end());
            const Candidate best = heap_.back();
            heap_.pop_back();
            Symbol& left = symbols_[best.left];
            // A pair only ever grows, so it is still the one that was weighed if its end is.
            if (left.begin == left.end || left.next < 0 || symbols_[left.next].end != best.end)
                continue;
            Symbol& right = symbols_[left.next];
            left.end = right.end;
            left.next = right.next;
            right.begin = right.end;
            if (left.next >= 0)
                symbols_[left.next].previous = best.left;
            if (left.previous >= 0)
                consider(left.previous, cost);
            consider(best.left, cost);
        }
    }

    template <class Visit> void each(Visit visit) const {
        for (int32_t i = symbols_.empty() ? -1 : 0; i >= 0; i = symbols_[i].next)
            visit(symbols_[i].begin, symbols_[i].end);
    }

  private:
    struct Candidate {
        double cost;
        int32_t left;
        uint32_t end;
        bool operator<(const Candidate& other) const { // the heap's top is the greatest
            return cost > other.cost || (cost == other.cost && left > other.left);
        }
    };

    template <class Cost> void consider(int32_t left, Cost& cost) {
        const Symbol& symbol = symbols_[left];
        if (symbol.next < 0)
            return;
        const uint32_t end = symbols_[symbol.next].end;
        double value;
        if (cost(symbol.begin, symbol.end, end, value)) {
            heap_.push_back({value, left, end});
            std::push_heap(heap_.begin(), heap_.end());
        }
    }

    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
};

} // namespace li
