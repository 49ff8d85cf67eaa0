"""Matrix product of two matrices in fp16 or bf16 on tensor cores, the second one as it is or as a layer's weights."""

from evokern import (
    Baseline,
    Constraint,
    Kernel,
    Launch,
    Mutation,
    Need,
    Parameter,
    ProblemField,
    Slice,
    Tensor,
    Tolerance,
    VectorAccess,
    Workload,
    divides,
    i32,
    i64,
)

TILED = {"PATH": ("tiled",)}
MMA = {**TILED, "TENSOR_CORES": ("mma_sync",)}
SKINNY = {"PATH": ("skinny",)}
SKINNY_ROWS = 128
"""Rows of A up to which a warp can keep their sums: at 128, and 16 columns of C, 64 registers."""
TICKETS = 4096
"""Tiles of C that a launch can merge by itself: the counters of the source."""
FEWEST_BLOCKS = 0.75
"""Blocks for each multiprocessor below which several tiles a block are not tried."""
DRAM_LATENCY_S = 300e-9
"""What a load from DRAM takes at least, s: 560 clocks on Hopper (arXiv 2402.13499). Times the DRAM's rate, that much is
in flight where it is busy (Little, Operations Research 9(3), 1961)."""
BF16_ROUNDOFF = 2.0**-8
"""Unit roundoff u of bfloat16, half a unit in the last of its 8 significant bits: |round(c) - c| <= u |c| (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., theorem 2.2)."""

GENES = (
    Mutation(
        "PATH",
        ("tiled", "skinny"),
        doc="tiles of A and B that a block's warps share, or few rows of A and weights straight into registers",
        relieves={"memory": 4, "latency": 3, "launch": 1},
    ),
    Mutation(
        "TENSOR_CORES",
        ("mma_sync", "wgmma"),
        when=TILED,
        min_compute_capability={"wgmma": (9, 0)},
        doc="each warp multiplies fragments that it reads, or four together what the tensor cores read",
        relieves={"tensor": 3, "shared-memory": 1},
    ),
    Mutation(
        "LOAD",
        ("cp_async", "registers", "producer_warps"),
        doc="how tiles reach shared memory, by the warps that multiply or by four others; skinny: where weights wait",
        relieves={"memory": 2, "shared-memory": 1, "latency": 1, "arithmetic": 1},
    ),
    Mutation(
        "FRAGMENTS",
        ("ahead", "in_place"),
        doc="fragments read 16 of K ahead (skinny: those of A as far as weights), or just before they are multiplied",
        relieves={"latency": 2, "shared-memory": 1, "tensor": 1},
    ),
    Mutation(
        "SMEM_LAYOUT",
        ("xor_swizzle", "padded", "plain"),
        for_study=("plain",),
        doc="layout of the tiles in shared memory",
        when=MMA,
        relieves={"shared-memory": 4, "memory": 1},
    ),
    Mutation(
        "ACCUMULATOR",
        ("fp32", "fp16"),
        less_precise=("fp16",),
        doc="type of the sums; fp16 overflows on large inputs, and bf16 adds up in fp32 alone",
        when=MMA,
        relieves={"arithmetic": 2, "tensor": 1},
    ),
    Mutation(
        "RASTER",
        ("grouped", "rows", "columns"),
        when=TILED,
        doc="order of the blocks over C, for reuse in L2",
        relieves={"memory": 3, "launch": 1},
    ),
    Mutation(
        "EPILOGUE",
        ("direct", "shared", "store_warps"),
        when=TILED,
        doc="C from registers, or through shared memory in wide stores, by the same warps or by four others",
        relieves=("memory", "shared-memory", "arithmetic"),
    ),
    Mutation(
        "SHAPE",
        ("runtime", "compiled"),
        when=TILED,
        doc="M, N and K as arguments, or known to the compiler, which then leaves out divisions and tails",
        relieves={"arithmetic": 2, "latency": 2, "launch": 1},
    ),
    Mutation(
        "PRODUCTS",
        ("mma", "fma"),
        doc="skinny: tensor cores with the weights as rows, or plain FMAs",
        when=SKINNY,
        relieves=("arithmetic", "tensor"),
    ),
    Mutation(
        "WEIGHT_POLICY",
        ("prefetch", "evict_first", "no_allocate", "normal"),
        doc="skinny: loads of the weights as they are, past L1, bringing 256 bytes to L2 too, or those that go first",
        when=SKINNY,
        relieves={"memory": 3},
    ),
    Mutation(
        "LANES",
        ("fragments", "row"),
        doc="skinny: a lane loads what it multiplies, of eight columns, or a warp long pieces of a row of weights",
        when=SKINNY,
        relieves={"memory": 3},
    ),
    Parameter("BLOCK_M", (32, 64, 128, 256), default=128, doc="rows of C of a block", when=TILED),
    Parameter("BLOCK_N", (32, 64, 128, 256), default=128, doc="columns of C of a block", when=TILED),
    Parameter("BLOCK_K", (16, 32, 64), default=32, doc="depth of a step", when=TILED),
    Parameter("WARPS_M", (1, 2, 4, 8), default=2, doc="warps along the rows", when=TILED, relieves=("latency",)),
    Parameter("WARPS_N", (1, 2, 4), default=2, doc="warps along the columns", when=TILED, relieves=("latency",)),
    Parameter(
        "STAGES",
        (2, 3, 4, 5, 6, 8),
        default=3,
        doc="steps in the ring, of shared memory or (skinny) registers",
        relieves={"latency": 2, "shared-memory": 1},
    ),
    Parameter(
        "VECTOR",
        (8, 4, 2, 1),
        for_study=(4, 2, 1),
        doc="elements of one access; must divide K and N",
        relieves={"memory": 2, "arithmetic": 1},
    ),
    Parameter(
        "GROUP",
        (4, 8, 16),
        default=8,
        doc="rows of tiles in a group",
        when={**TILED, "RASTER": ("grouped",)},
        relieves=("memory",),
    ),
    Parameter(
        "TILES",
        (1, 2, 4, 8, 16),
        doc="tiles of C that a block computes in turn, the next one's loads beside the stores of one",
        when=TILED,
        relieves={"launch": 2, "latency": 2, "memory": 1},
    ),
    Parameter(
        "SPLIT_K",
        (1, 2, 4, 8),
        doc="blocks that share a tile of C along K",
        relieves={"launch": 2, "memory": 1, "latency": 1},
    ),
    Mutation(
        "MERGE",
        ("launch", "ticket"),
        doc="who adds the sums of a split along K: a second launch, or the block with the last ticket",
        when={"SPLIT_K": (2, 4, 8)},
        relieves={"launch": 3, "latency": 1},
    ),
    Parameter(
        "WARP_COLUMNS",
        (16, 32, 64, 128),
        default=64,
        doc="skinny: columns of C of a warp (an eighth of them with LANES=row and PRODUCTS=fma)",
        when=SKINNY,
        relieves={"memory": 2, "latency": 2},
    ),
    Parameter(
        "WARPS_ACROSS",
        (1, 2, 4),
        doc="skinny: warps of a block side by side along the columns",
        when=SKINNY,
        relieves={"memory": 1, "latency": 1},
    ),
    Parameter(
        "WARPS_K",
        (1, 2, 4, 8, 16),
        default=8,
        doc="skinny: warps of a block that share K",
        when=SKINNY,
        relieves={"latency": 3, "memory": 2},
    ),
    Parameter(
        "DEPTH",
        (32, 64, 128),
        doc="skinny: depth of a warp's step (eight times that with LANES=row and PRODUCTS=fma)",
        when=SKINNY,
        relieves={"memory": 2, "latency": 1},
    ),
    Parameter("MIN_BLOCKS", (1, 2), doc="resident blocks promised to the compiler", relieves=("latency", "launch")),
)


def skinny(c):
    """Whether few rows of A are multiplied with weights that no tile keeps."""
    return c["PATH"] == "skinny"


def on_wgmma(c):
    """Whether the tensor cores read tiles from shared memory by themselves, as Hopper's can."""
    return not skinny(c) and c["TENSOR_CORES"] == "wgmma"


def shape_compiled(c):
    """Whether the program is compiled for its problem's M, N and K, as the skinny path always is."""
    return skinny(c) or c["SHAPE"] == "compiled"


def transposed(p):
    """Whether b is [N, K], as torch's Linear keeps its weights."""
    return p["layout"] == "nt"


def in_flight(c):
    """Return the steps that are on their way while one is multiplied."""
    return c.STAGES - (2 if on_wgmma(c) and c["FRAGMENTS"] == "ahead" else 1)


def row_lanes(c):
    """Whether the lanes of a warp ask for long pieces of a row of weights together."""
    return skinny(c) and c["LANES"] == "row"


def lanes_along_depth(c):
    """Return the lanes of a warp along K: of plain FMAs all of them where they stand along a row of weights."""
    return 32 if row_lanes(c) and c["PRODUCTS"] == "fma" else 4


def warp_columns(c):
    """Return the columns of C of a warp of the skinny path."""
    return c.WARP_COLUMNS * 4 // lanes_along_depth(c)


def block_tile(c):
    """Return the rows and columns of C of a block: the skinny path's blocks take every row."""
    return (SKINNY_ROWS, c.WARPS_ACROSS * warp_columns(c)) if skinny(c) else (c.BLOCK_M, c.BLOCK_N)


def tiles(c, p):
    """Return the tiles of C."""
    rows, columns = block_tile(c)
    return -(-p.M // rows) * -(-p.N // columns)


def blocks(c, p):
    """Return the blocks that share the tiles of C."""
    return tiles(c, p) if skinny(c) else -(-tiles(c, p) // c.TILES)


def store_threads(c):
    """Return the further threads of a block, those that only store C."""
    return 128 if not skinny(c) and c["EPILOGUE"] == "store_warps" else 0


def producer_threads(c):
    """Return the further threads of a block, those that only load tiles for the others."""
    return 128 if not skinny(c) and c["LOAD"] == "producer_warps" else 0


def compute_threads(c):
    """Return the threads of a block that multiply."""
    return 32 * (c.WARPS_ACROSS * c.WARPS_K if skinny(c) else c.WARPS_M * c.WARPS_N)


def loaders(c):
    """Return the threads of a block that load tiles."""
    return producer_threads(c) or compute_threads(c)


def threads(c):
    """Return the threads of a block."""
    return compute_threads(c) + producer_threads(c) + store_threads(c)


def pieces(c):
    """Return the 16-byte pieces of the weights that a lane of the skinny path loads in a step."""
    return c.WARP_COLUMNS // 8 * (c.DEPTH // 32)


def activation_pieces(c, p):
    """Return the 16-byte pieces of A that a lane of the skinny path multiplies a step of the weights with."""
    return (-(-p.M // 8) if c["PRODUCTS"] == "mma" else p.M) * (c.DEPTH // 32)


def rows_read(c, p):
    """Return the rows of A that a warp of the skinny path reads: whole tiles of an mma, or those that there are."""
    return p.M if lanes_along_depth(c) == 32 else -(-p.M // 8) * 8


def shared_bytes(c, p):
    """Return the bytes of the ring, or of the tile of C that takes its place."""
    if skinny(c):
        places = pieces(c) + (activation_pieces(c, p) if c["FRAGMENTS"] == "ahead" else 0)
        ring = c.STAGES * places * threads(c) * 16 if c["LOAD"] == "cp_async" else 0
        return max(ring, 4 * c.WARPS_K * p.M * (block_tile(c)[1] + 4))
    pad = 8 if c["SMEM_LAYOUT"] == "padded" else 0
    rows, columns = (c.BLOCK_N, c.BLOCK_K) if transposed(p) else (c.BLOCK_K, c.BLOCK_N)
    ring = 2 * c.STAGES * (c.BLOCK_M * (c.BLOCK_K + pad) + rows * (columns + pad))
    tile = 2 * c.BLOCK_M * (c.BLOCK_N + 8) if c["EPILOGUE"] != "direct" and c.SPLIT_K == 1 else 0
    # With several tiles a block the next one's steps are on their way while one is stored.
    return max(ring, tile) if c.TILES == 1 else ring + tile


def registers_allowed(c):
    """Return the registers that launch bounds leave a thread: they are given out by eights."""
    return min(255, 65536 // (threads(c) * c.MIN_BLOCKS) // 8 * 8)


def skinny_registers(c, p):
    """Compare what a lane of the skinny path keeps with the registers that launch bounds leave it."""
    if not skinny(c):
        return True
    registers = c["LOAD"] == "registers"
    sums = c.WARP_COLUMNS // 8 * (2 * -(-p.M // 8) if c["PRODUCTS"] == "mma" else p.M)
    activations = 4 * activation_pieces(c, p) * (c.STAGES if registers and c["FRAGMENTS"] == "ahead" else 1)
    weights = 4 * (c.STAGES * pieces(c) if registers else c.WARP_COLUMNS // 8)
    addresses = 88 if c.VECTOR == 1 else 40  # elements that are loaded one by one are put together in further registers
    return Need(sums + activations + weights + addresses, registers_allowed(c), "registers")


def policy_register(c):
    """Whether cp.async under a policy becomes sound machine code.

    With 16 columns of FMAs a lane, in blocks of one or two warps, ptxas 13.5 writes `LDGSTS [R+UR6], desc[UR7]` for
    sm_90a (read with nvdisasm, 2026-11-24): an illegal instruction, in which such candidates ended on an H200.
    """
    under_policy = skinny(c) and c["LOAD"] == "cp_async" and c["WEIGHT_POLICY"] == "evict_first"
    return not under_policy or c["PRODUCTS"] == "mma" or c.WARP_COLUMNS < 128


def bytes_in_flight(c, p, chip):
    """Compare the bytes of weights that the chip's blocks have in flight with those that its DRAM takes to be busy."""
    if not skinny(c):
        return True
    needed = skinny_registers(c, p).needed * threads(c)
    resident = min(
        chip.threads_per_sm // threads(c),
        chip.registers_per_sm // needed,
        chip.shared_bytes_per_sm // (shared_bytes(c, p) + chip.shared_bytes_reserved),
    )
    blocks = min(tiles(c, p) * c.SPLIT_K, chip.sms * max(resident, 1))
    wanted = min(chip.dram_bytes_per_s * DRAM_LATENCY_S, p.N * p.K / 2)  # a quarter of the weights of a small product
    return Need(wanted, blocks * threads(c) * 16 * c.STAGES * pieces(c), "bytes")


def accumulator_registers(c):
    """Compare a thread's sums and fragments with the registers that launch bounds leave it."""
    if skinny(c):
        return True
    sums = c.BLOCK_M * c.BLOCK_N // compute_threads(c) // (2 if c["ACCUMULATOR"] == "fp16" else 1)
    fragments = (c.BLOCK_M // c.WARPS_M + c.BLOCK_N // c.WARPS_N) // 4 * (2 if c["FRAGMENTS"] == "ahead" else 1)
    if on_wgmma(c):
        fragments = 0
    chunks = (c.BLOCK_M + c.BLOCK_N) * c.BLOCK_K // loaders(c) // 8
    held = 0 if shape_compiled(c) else chunks  # where each comes from, unless distances are constants
    if c["LOAD"] == "registers":  # chunks of 16 bytes on their way, where each comes from, and where its accesses do
        held = 5 * chunks + 2 * (8 // c.VECTOR)
    # Elements that are loaded one by one are put together in further registers, and a split stores its sums one by one.
    single = 0 if c.VECTOR > 1 else 24 if c.SPLIT_K == 1 else 40
    if producer_threads(c):
        # Chunks are others', but two roles in one program take more: 128 sums spill 8 and 104 bytes.
        held = 16 if shape_compiled(c) else 24
    return Need(sums + fragments + held + single + 24, registers_allowed(c), "registers")


def steps(c, p):
    """Return the steps that K takes, and those of each split."""
    total = -(-p.K // (c.DEPTH * lanes_along_depth(c) // 4 if skinny(c) else c.BLOCK_K))
    return total, -(-total // c.SPLIT_K)


def last_share(c, p):
    """Compare the step at which the last split starts with the steps there are."""
    total, share = steps(c, p)
    return Need((c.SPLIT_K - 1) * share + 1, total, "steps")


def bf16_instructions(c, p, chip):
    """Compare the chip's compute capability with what bf16 takes (PTX ISA, "mma": .bf16 from sm_80)."""
    major, minor = chip.compute_capability
    return Need(8.0 if p["dtype"] == "bf16" else 0.0, major + minor / 10)


def launches(c, p):
    """One block a tile of C and share of K; then, unless the last block did it, the sum of the shares."""
    shape = () if skinny(c) else (i32(p.M), i32(p.N), i32(p.K))  # the skinny path is compiled for its own
    product = Launch(
        "matmul_skinny" if skinny(c) else "matmul",
        (blocks(c, p), c.SPLIT_K),
        threads(c),
        ("a", "b", "c", "partial", *shape),
        shared_bytes=shared_bytes(c, p),
        min_blocks=c.MIN_BLOCKS,
    )
    if c.SPLIT_K == 1 or c["MERGE"] == "ticket":
        return [product]
    count = p.M * p.N
    return [product, Launch("add_partial_sums", -(-count // 256), 256, ("partial", "c", i64(count)))]


def tensors(p, c):
    """A, B, C, and the partial sums of a split along K."""
    partial = (c.SPLIT_K, p.M, p.N) if c.SPLIT_K > 1 else (1,)
    return {
        "a": Tensor(p["dtype"], (p.M, p.K), large=4.0),
        "b": Tensor(p["dtype"], (p.N, p.K) if transposed(p) else (p.K, p.N), large=4.0),
        "c": Tensor(p["dtype"], (p.M, p.N), "output"),
        "partial": Tensor("f32", partial, "workspace"),
    }


def reference(p, t):
    """The product in float64."""
    return {"c": t["a"] @ (t["b"].T if transposed(p) else t["b"])}


def cublas(p, t):
    """The product of torch, or its linear layer, which call cuBLAS."""
    from torch.nn.functional import linear

    return {"c": linear(t["a"], t["b"]) if transposed(p) else t["a"] @ t["b"]}


def slices(p):
    """Rows of a reach rows of c, and columns of b (its rows at nt) columns of c."""
    return Slice({"a": 0, "c": 0}), Slice({"b": 0 if transposed(p) else 1, "c": 1})


WARPGROUPS = {"TENSOR_CORES": "wgmma", "BLOCK_M": 128, "WARPS_M": 8, "WARPS_N": 1, "BLOCK_K": 64, "STAGES": 4}
PERSISTENT = {**WARPGROUPS, "BLOCK_N": 256, "STAGES": 3, "TILES": 4}
STARTING_POINTS = (
    # Two warpgroups with 64 rows each, four steps of 64: tiles of CUTLASS's kernels for Hopper
    # (`cutlass3x_sm90_tensorop_gemm_f16_…_128x256x64_…` and `…_128x128x64_…`).
    {**WARPGROUPS, "BLOCK_N": 256},
    {**WARPGROUPS, "BLOCK_N": 128},
    # The first of them with warps that only load, or only store, and several tiles a block (CUTLASS's warp-specialised,
    # persistent kernels, `KernelCpAsyncWarpSpecialized`).
    {**PERSISTENT, "LOAD": "producer_warps", "EPILOGUE": "shared", "SHAPE": "compiled"},
    {**PERSISTENT, "FRAGMENTS": "in_place", "EPILOGUE": "store_warps"},
    {"PATH": "skinny"},
    # Narrow blocks, so that there are enough of them for every multiprocessor although each takes all of K.
    {"PATH": "skinny", "LOAD": "registers", "WARP_COLUMNS": 32, "WARPS_K": 16},
    # Weights in long pieces of their rows; as a layer keeps them of 16 columns of C, or of two and all lanes along K.
    {"PATH": "skinny", "LANES": "row", "WARP_COLUMNS": 32, "DEPTH": 64},
    {"PATH": "skinny", "LANES": "row", "WARP_COLUMNS": 16, "DEPTH": 64},
    {"PATH": "skinny", "LANES": "row", "WARP_COLUMNS": 16, "PRODUCTS": "fma", "LOAD": "registers", "STAGES": 2},
)
"""What others' kernels do by default, and what is made for few rows."""

kernel = Kernel(
    name="matmul",
    genes=GENES,
    starting_points=STARTING_POINTS,
    fields=(
        *(ProblemField(name, most=65536) for name in "MNK"),
        ProblemField("dtype", ("f16", "bf16"), "f16", doc="elements of a, b and c"),
        ProblemField("layout", ("nn", "nt"), "nn", later=True, doc="b [K, N], or [N, K] as a linear layer keeps it"),
    ),
    launches=launches,
    macros=lambda c, p: {
        "BF16": int(p["dtype"] == "bf16"),
        "NT": int(transposed(p)),
        "ROWS_A": p.M if shape_compiled(c) else 0,
        "COLUMNS_B": p.N if shape_compiled(c) else 0,
        "DEPTH_A": p.K if shape_compiled(c) else 0,
    },
    architecture_suffix=lambda c: "a" if on_wgmma(c) else "",
    vector_accesses=lambda c, p: [VectorAccess("rows of a, b and c", 2 * c.VECTOR, (2 * p.K, 2 * p.N))],
    constraints=(
        Constraint(
            "warp_rows",
            lambda c: skinny(c) or divides(16 * c.WARPS_M, c.BLOCK_M),
            "a warp's rows are whole 16-row mma tiles",
        ),
        Constraint(
            "warp_columns",
            lambda c: skinny(c) or divides(16 * c.WARPS_N, c.BLOCK_N),
            "a warp's columns are pairs of mma tiles",
        ),
        Constraint("mma_depth", lambda c: divides(16, c.BLOCK_K), "an mma takes 16 elements of K"),
        Constraint("ring", lambda c: c.STAGES >= 2, "one stage is computed on while another is filled"),
        Constraint(
            "a_tile_split",
            lambda c: skinny(c) or divides(8 * loaders(c), c.BLOCK_M * c.BLOCK_K),
            "the A tile must split evenly over the threads",
        ),
        Constraint(
            "b_tile_split",
            lambda c: skinny(c) or divides(8 * loaders(c), c.BLOCK_K * c.BLOCK_N),
            "the B tile must split evenly over the threads",
        ),
        Constraint(
            "accumulators_fit", accumulator_registers, "sums that spill to local memory cost more than they save"
        ),
        Constraint(
            "async_width", lambda c: c["LOAD"] == "registers" or c.VECTOR >= 2, "cp.async moves at least 4 bytes"
        ),
        Constraint(
            "register_ring",
            lambda c: skinny(c) or c["LOAD"] != "registers" or c.STAGES == 2,
            "registers hold one step only",
        ),
        Constraint(
            "ahead_needs_depth",
            lambda c: skinny(c) or on_wgmma(c) or c["FRAGMENTS"] == "in_place" or divides(32, c.BLOCK_K),
            "two sets of fragments take turns within a step",
        ),
        Constraint(
            "wgmma_rows",
            lambda c: not on_wgmma(c) or divides(4, c.WARPS_M),
            "four warps along the rows multiply together",
        ),
        Constraint(
            "wgmma_columns",
            lambda c, p: not on_wgmma(c) or transposed(p) or divides(64 * c.WARPS_N, c.BLOCK_N),
            "rows of B stand in panels of 64 columns; at layout=nt they are rows of K",
        ),
        Constraint(
            "wgmma_ring",
            lambda c: not on_wgmma(c) or in_flight(c) > 0,
            "a step is multiplied, one awaited and one filled",
        ),
        Constraint(
            "bf16_sums",
            lambda c, p: p["dtype"] == "f16" or c["ACCUMULATOR"] == "fp32",
            "tensor cores add products of bf16 in fp32 alone: ACCUMULATOR=fp32",
        ),
        Constraint(
            "bf16_instructions",
            bf16_instructions,
            "instructions on bf16 need compute capability 8.0; dtype=f16 runs here",
        ),
        Constraint(
            "tiles_or_split",
            lambda c: skinny(c) or c.TILES == 1 or c.SPLIT_K == 1,
            "a tile of several is not split along K",
        ),
        Constraint(
            "tiles_async",
            lambda c: skinny(c) or c.TILES == 1 or c["LOAD"] != "registers",
            "registers would hold the next tile while one is stored",
        ),
        Constraint(
            "producers",
            lambda c: c["LOAD"] != "producer_warps" or (on_wgmma(c) and 3 <= c.STAGES <= 6 and c.SPLIT_K == 1),
            "producer warps serve wgmma, by two of the 16 named barriers for each stage",
        ),
        Constraint(
            "store_warps",
            lambda c: skinny(c) or not store_threads(c) or c.TILES > 1,
            "warps that only store C have something to wait for where several tiles are computed in turn",
        ),
        Constraint(
            "tiles_for_all",
            lambda c, p, chip: skinny(c) or c.TILES == 1 or Need(FEWEST_BLOCKS * chip.sms, blocks(c, p), "blocks"),
            "fewer blocks would leave multiprocessors idle",
            wasteful=True,
        ),
        Constraint("whole_last_share", last_share, "the last split must have a step left"),
        Constraint(
            "skinny_rows", lambda c, p: not skinny(c) or p.M <= SKINNY_ROWS, "a warp keeps the sums of all rows of A"
        ),
        Constraint(
            "skinny_columns",
            lambda c, p: not skinny(c) or transposed(p) or divides(32, c.WARP_COLUMNS),
            "eight lanes take 4 columns each of a row of B, or 8; at layout=nt they are rows of K",
        ),
        Constraint(
            "fma_rows",
            lambda c, p: not skinny(c) or c["PRODUCTS"] == "mma" or p.M <= 8,
            "every weight is multiplied with each row of A",
        ),
        Constraint(
            "async_policy",
            lambda c: not skinny(c) or c["LOAD"] == "registers" or c["WEIGHT_POLICY"] != "no_allocate",
            "cp.async passes L1 by as it is",
        ),
        Constraint(
            "policy_register",
            policy_register,
            "ptxas 13 puts the policy of such copies into an odd uniform register, which no instruction may name",
        ),
        Constraint(
            "row_lanes",
            lambda c, p: not row_lanes(c) or c["PRODUCTS"] == "mma" or transposed(p),
            "plain FMAs add up along rows of b, which are rows of K at layout=nt alone",
        ),
        Constraint(
            "row_ring",
            lambda c: (
                not row_lanes(c)
                or c["PRODUCTS"] == "fma"
                or (c["LOAD"] != "registers" and c["FRAGMENTS"] == "ahead" and c.DEPTH >= 64)
            ),
            "the lanes of an mma exchange pieces of 128 bytes or more, of A too, through shared memory",
        ),
        Constraint("skinny_registers", skinny_registers, "weights that spill to local memory are loaded twice"),
        Constraint(
            "tickets",
            lambda c, p: c["MERGE"] == "launch" or Need(tiles(c, p), TICKETS, "tiles"),
            "each tile of C that is split needs a counter",
        ),
        Constraint(
            "widest_vectors",
            lambda c, p: not skinny(c) or 2 * c.VECTOR > 8 or p.K % (2 * c.VECTOR) + p.N % (2 * c.VECTOR) > 0,
            "narrower loads only keep fewer bytes in flight",
            wasteful=True,
        ),
        Constraint(
            "bytes_in_flight", bytes_in_flight, "fewer bytes in flight leave the DRAM idle between them", wasteful=True
        ),
        Constraint(
            "rows_from_cache",
            lambda c, p: not skinny(c) or Need(rows_read(c, p), 2 * warp_columns(c), "rows"),
            "each warp reads the rows of A from L1, and more than two bytes of them for one of the weights take longer",
            wasteful=True,
        ),
        Constraint(
            "stages_have_steps",
            lambda c, p: not skinny(c) or Need(c.STAGES, max(2, -(-steps(c, p)[1] // c.WARPS_K)), "stages"),
            "stages beyond the steps of a warp stay empty",
            wasteful=True,
        ),
        Constraint(
            "warps_have_steps",
            lambda c, p: not skinny(c) or c.WARPS_K == 1 or Need(c.WARPS_K, steps(c, p)[1], "steps"),
            "warps beyond the steps of a share would only wait",
            wasteful=True,
        ),
    ),
    workload=Workload(
        tensors=tensors,
        reference=reference,
        # Products of bf16 are exact in fp32 (16 bits of 24), so sums round as those of fp16 do and have the same room;
        # then c is rounded once, by u |c|. The tolerance is twice that, for errors beyond its half are marginal.
        tolerance={"c": Tolerance(0.05, 2e-3, {"bf16": Tolerance(0.05, 2 * BF16_ROUNDOFF)})},
        flops=lambda p: 2 * p.M * p.N * p.K,
        bytes=lambda p: 2 * (p.M * p.K + p.K * p.N + p.M * p.N),
        baselines=(Baseline("cuBLAS", cublas),),
        small_problems=("M=144,N=160,K=96", "M=72,N=48,K=200", "M=5,N=136,K=1000", "M=1,N=72,K=4000"),
        slices=slices,
        nonfinite=("a", "b"),
    ),
)
