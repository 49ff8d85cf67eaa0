// One step of a timed graph (evokern/gate/timed_plan.py). Block b executes copy b: bytes from one address to another,
// or poison if there is no source. A recorded output goes into the slot of this execution. The blocks run concurrently
// in any order, because no copy of a step writes what another one reads.
//
// Every execution of a graph uses the same parameters. Only a counter in memory changes between executions; each block
// has its own, so no block waits for another.

constexpr unsigned kMostCopies = 160;
constexpr unsigned kEvenOnly = 1, kOddOnly = 2, kKept = 4;
constexpr unsigned kFillShift = 8;

struct Copy {
    unsigned char* to;
    const unsigned char* from;  // null: fill
    unsigned bytes;
    unsigned what;  // kEvenOnly, kOddOnly, kKept; the byte of a fill starts at bit kFillShift
};

struct Step {
    Copy copies[kMostCopies];
    unsigned* executions;
    unsigned long long slot_bytes;
    unsigned slots;
};

static_assert(sizeof(Step) <= 4096, "kernel parameters hold at most 4 KB");

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
