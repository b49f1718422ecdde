// The choice of threads through the C ABI, for tests only.
#include "api.h"
#include "crowding.h"

LI_API li::Crowding* li_crowding_create() { return new li::Crowding; }

LI_API void li_crowding_destroy(li::Crowding* crowding) { delete crowding; }

LI_API int li_crowding_choose(const li::Crowding* crowding, int wanted, int64_t now) {
    return crowding->choose(wanted, now);
}

LI_API void li_crowding_report(li::Crowding* crowding, int threads, int64_t duration, int64_t slept, int64_t now) {
    crowding->report(threads, duration, slept, now);
}
