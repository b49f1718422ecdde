// What the functions of the C interface return; quantizer.py has a text for each.
#pragma once

namespace li::quantize {

enum Status : int {
    kDone = 0,
    kUnknownType = 1,
    kUnknownInstructions = 2,
    kWrongShape = 3,      // sizes do not fit each other
    kNotFinite = 4,       // a weight of the row is NaN or infinite
    kTooLarge = 5,        // the type cannot hold a weight of the row
    kBadImportance = 6,   // negative, NaN or infinite, in the column
    kNoMemory = 7,
};

} // namespace li::quantize
