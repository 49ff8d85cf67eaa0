// One step of a timed graph (evokern/gate/timed_plan.py): block b does copy b, bytes from one place to another, or
// poison where there is no other place. A kept answer goes into the slot of this execution. Blocks do their copies at
// once, in any order: no copy of a step writes what another one reads.
//
// Every execution of a graph launches with the same parameters; what differs from one to the next is a count in memory,
// one per block, so that no block waits for another.

constexpr unsigned kMostCopies = 160;
constexpr unsigned kEvenOnly = 1, kOddOnly = 2, kKept = 4;
constexpr unsigned kFillShift = 8;

struct Copy {
    unsigned char* to;
    const unsigned char* from;  // null: fill
    unsigned bytes;
    unsigned what;  // kEvenOnly, kOddOnly, kKept; from bit kFillShift on the byte of a fill
};

struct Step {
    Copy copies[kMostCopies];
    unsigned* executions;
    unsigned long long slot_bytes;
    unsigned slots;
};

static_assert(sizeof(Step) <= 4096, "a kernel's parameters have 4 KB");

extern "C" __global__ void __launch_bounds__(256) timed_calls_step(const __grid_constant__ Step step) {
    const Copy copy = step.copies[blockIdx.x];
    const unsigned execution = step.executions[blockIdx.x];
    const bool odd = execution & 1u;
    const bool idle = (odd && (copy.what & kEvenOnly)) || (!odd && (copy.what & kOddOnly));
    unsigned char* const to = copy.to + ((copy.what & kKept) ? execution % step.slots * step.slot_bytes : 0ull);
    if (!idle) {
        const unsigned fill = ((copy.what >> kFillShift) & 0xffu) * 0x01010101u;
        const unsigned long long places =
            reinterpret_cast<unsigned long long>(to) | reinterpret_cast<unsigned long long>(copy.from) | copy.bytes;
        if (places % 16 == 0) {
            const uint4* const from = reinterpret_cast<const uint4*>(copy.from);
            for (unsigned i = threadIdx.x; i < copy.bytes / 16; i += blockDim.x)
                reinterpret_cast<uint4*>(to)[i] = from ? from[i] : make_uint4(fill, fill, fill, fill);
        } else {
            for (unsigned i = threadIdx.x; i < copy.bytes; i += blockDim.x)
                to[i] = copy.from ? copy.from[i] : static_cast<unsigned char>(fill);
        }
    }
    __syncthreads();  // every thread has read the count
    if (threadIdx.x == 0) step.executions[blockIdx.x] = execution + 1;
}
