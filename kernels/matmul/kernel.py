"""Matrix product in fp16 or bf16 on tensor cores; the second matrix is row-major or stored as a layer's weights."""

from itertools import islice, product

from evokern import (
    AtMost,
    Baseline,
    Constraint,
    Kernel,
    Launch,
    Mutation,
    Parameter,
    ProblemField,
    Slice,
    SumOfProducts,
    Tensor,
    TileMap,
    VectorAccess,
    Workload,
    divides,
    i32,
    i64,
)

TILED = {"PATH": ("tiled",)}
MMA = {**TILED, "TENSOR_CORES": ("mma_sync",)}
SKINNY = {"PATH": ("skinny",)}
BULK = {"PATH": ("bulk",)}
WITHOUT_BULK = {"PATH": ("tiled", "skinny")}
RASTERED = {"PATH": ("tiled", "bulk")}
SKINNY_ROWS = 128
"""Maximum number of rows of A whose sums fit in a warp's registers (128 rows and 16 columns of C need 64 registers)."""
BULK_K = 64
"""Elements of K per step of the bulk path: rows of 128 bytes, the widest swizzle."""
BULK_BYTES = 227 * 1024
"""Shared memory of a block on compute capability 9.0."""
BULK_TILE = (
    "CONSUMERS", "CONSUMER_M", "SCHEDULE", "SPLITS", "MERGE_PARTS", "CLUSTER_M", "CLUSTER_N", "TILE_N", "ROW_OPERAND",
)  # fmt: skip
"""Genes of the bulk path that determine its tiles."""
BULK_GENES = (*BULK_TILE, "STAGES", "GRID_BLOCKS")
"""Genes that the starting points of the bulk path choose."""
BULK_WARPGROUPS = (
    (2, 64, "together"), (2, 128, "together"), (3, 64, "together"), (1, 64, "together"), (2, 64, "alternating"),
    (2, 128, "alternating"), (3, 64, "alternating"),
)  # fmt: skip
"""Warpgroups, their rows, and schedules of the starting points of the bulk path."""
BULK_SPLITS = ((1, "ticket"), (2, "cluster"), (3, "ticket"), (4, "cluster"), (4, "ticket"), (6, "ticket"))
"""Parts of a tile along K, and ways to merge them, of the starting points of the bulk path."""
BULK_POINTS = 12
"""Number of starting points of the bulk path."""
GRIDS = (0, 132)
"""Resident blocks per MIN_BLOCKS; 0 for a block per tile."""
POWER_SHARE = 0.82
"""Share of the tensor cores' rate at the power limit of an H200 (docs/lab/2026-11-27-kernels.md)."""
L2_BYTES, UNALIGNED, NARROW = 64, 2.2, 1.2
"""Bytes that L2 delivers to a multiprocessor in a clock cycle, and factors for unaligned and for short rows."""
CLUSTER_CYCLES = 1500
"""Clock cycles in which a cluster starts and ends."""
STORE_CYCLES, MERGE_CYCLES, EXCHANGE_CYCLES = 0.1, 0.25, 0.15
"""Clock cycles in which a block stores a sum, and adds the parts of a split through the workspace or a cluster."""
TICKET_CYCLES = 2500
"""Clock cycles until the last block of a tile knows that it is the last."""
BULK_COLUMNS = (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
"""Columns of a wgmma of the bulk path: one size of C is divided by 64, the other by any of these."""
TICKETS = 4096
"""Maximum number of tiles of C that one launch can merge: the number of counters in the source."""
FEWEST_BLOCKS = 0.75
"""Minimum number of blocks per multiprocessor with several tiles per block."""
DRAM_LATENCY_S = 300e-9
"""Shortest latency of a DRAM load in seconds, 560 clocks on Hopper (arXiv 2402.13499). Multiplied by the DRAM rate, it
gives the bytes in flight of a busy DRAM (Little, Operations Research 9(3), 1961)."""

GENES = (
    Mutation(
        "PATH",
        ("tiled", "skinny", "bulk"),
        min_compute_capability={"bulk": (9, 0)},
        doc="tiled: a block's warps share tiles of A and B; skinny: few rows of A, with weights loaded directly; "
        "bulk: tiles by tensor copies of a producer warp, and wgmma",
        relieves={"memory": 4, "latency": 3, "launch": 1},
    ),
    Mutation(
        "TENSOR_CORES",
        ("mma_sync", "wgmma"),
        when=TILED,
        min_compute_capability={"wgmma": (9, 0)},
        doc="each warp multiplies fragments (mma_sync), or four warps together multiply from shared memory (wgmma)",
        relieves={"tensor": 3, "shared-memory": 1},
    ),
    Mutation(
        "LOAD",
        ("cp_async", "registers", "producer_warps"),
        doc="the multiplying warps copy tiles asynchronously or through registers, or four other warps copy them; "
        "skinny: weights in flight are in shared memory or in registers",
        relieves={"memory": 2, "shared-memory": 1, "latency": 1, "arithmetic": 1},
        when=WITHOUT_BULK,
    ),
    Mutation(
        "FRAGMENTS",
        ("ahead", "in_place"),
        doc="read fragments 16 elements of K ahead (skinny: read A as far ahead as the weights), or just before use",
        relieves={"latency": 2, "shared-memory": 1, "tensor": 1},
        when=WITHOUT_BULK,
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
        doc="accumulator type; fp16 overflows on large inputs, and bf16 inputs need fp32",
        when=MMA,
        relieves={"arithmetic": 2, "tensor": 1},
    ),
    Mutation(
        "RASTER",
        ("grouped", "rows", "columns"),
        when=RASTERED,
        doc="order of the blocks over C, for reuse in L2",
        relieves={"memory": 3, "launch": 1},
    ),
    Mutation(
        "EPILOGUE",
        ("direct", "shared", "store_warps"),
        when=TILED,
        doc="store C from registers, or through shared memory by the same warps or by four others",
        relieves=("memory", "shared-memory", "arithmetic"),
    ),
    Mutation(
        "SHAPE",
        ("runtime", "compiled"),
        when=TILED,
        doc="M, N and K passed as arguments, or known at compile time, which removes divisions and tail code",
        relieves={"arithmetic": 2, "latency": 2, "launch": 1},
    ),
    Mutation(
        "EXTENT",
        ("exact", "padded"),
        when=SKINNY,
        doc="skinny: M and N are compile-time constants; or only M, rounded up to a power of two, so that one program "
        "runs all smaller M and all N",
        relieves={"memory": 1, "latency": 1},
    ),
    Mutation(
        "PRODUCTS",
        ("mma", "fma"),
        doc="skinny: tensor cores with the weights as rows, or plain FMA instructions",
        when=SKINNY,
        relieves=("arithmetic", "tensor"),
    ),
    Mutation(
        "WEIGHT_POLICY",
        ("prefetch", "evict_first", "no_allocate", "normal"),
        doc="skinny: cache policy of weight loads: prefetch of 256 bytes to L2, the same with first eviction from L2, "
        "no allocation in L1, or normal",
        when=SKINNY,
        relieves={"memory": 3},
    ),
    Mutation(
        "LANES",
        ("fragments", "row"),
        doc="skinny: each lane loads its own fragments, or a warp loads long pieces of a row of weights",
        when=SKINNY,
        relieves={"memory": 3},
    ),
    Parameter("BLOCK_M", (32, 64, 128, 256), default=128, doc="rows of C per block", when=TILED),
    Parameter("BLOCK_N", (32, 64, 128, 256), default=128, doc="columns of C per block", when=TILED),
    Parameter("BLOCK_K", (16, 32, 64), default=32, doc="elements of K per step", when=TILED),
    Parameter("WARPS_M", (1, 2, 4, 8), default=2, doc="warps along the rows", when=TILED, relieves=("latency",)),
    Parameter("WARPS_N", (1, 2, 4), default=2, doc="warps along the columns", when=TILED, relieves=("latency",)),
    Parameter(
        "STAGES",
        (2, 3, 4, 5, 6, 8),
        default=3,
        doc="number of steps in the ring, in shared memory or (skinny) registers",
        relieves={"latency": 2, "shared-memory": 1},
    ),
    Parameter(
        "VECTOR",
        (8, 4, 2, 1),
        for_study=(4, 2, 1),
        doc="elements per access; must divide K and N",
        relieves={"memory": 2, "arithmetic": 1},
        when=WITHOUT_BULK,
    ),
    Parameter(
        "GROUP",
        (4, 8, 16),
        default=8,
        doc="rows of tiles per group of blocks",
        when={**RASTERED, "RASTER": ("grouped",)},
        relieves=("memory",),
    ),
    Parameter(
        "TILES",
        (1, 2, 4, 8, 16),
        doc="tiles of C per block; the loads of the next tile overlap with the stores of the current one",
        when=TILED,
        relieves={"launch": 2, "latency": 2, "memory": 1},
    ),
    Parameter(
        "SPLIT_K",
        (1, 2, 4, 8),
        doc="number of blocks that split the sums of a tile of C along K",
        relieves={"launch": 2, "memory": 1, "latency": 1},
        when=WITHOUT_BULK,
    ),
    Mutation(
        "MERGE",
        ("launch", "ticket"),
        doc="merge of a split along K: in a second launch, or by the block that finishes last",
        when={**WITHOUT_BULK, "SPLIT_K": (2, 4, 8)},
        relieves={"launch": 3, "latency": 1},
    ),
    Parameter(
        "WARP_COLUMNS",
        (16, 32, 64, 128),
        default=64,
        doc="skinny: columns of C per warp (an eighth of this with LANES=row and PRODUCTS=fma)",
        when=SKINNY,
        relieves={"memory": 2, "latency": 2},
    ),
    Parameter(
        "WARPS_ACROSS",
        (1, 2, 4),
        doc="skinny: warps of a block along the columns",
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
        doc="skinny: elements of K per warp and step (eight times this with LANES=row and PRODUCTS=fma)",
        when=SKINNY,
        relieves={"memory": 2, "latency": 1},
    ),
    Parameter("CONSUMERS", (2, 1, 3), doc="bulk: warpgroups that multiply", when=BULK, relieves=("tensor", "latency")),
    Parameter("CONSUMER_M", (64, 128), doc="bulk: rows per warpgroup", when=BULK, relieves=("shared-memory",)),
    Parameter("TILE_N", BULK_COLUMNS, default=128, doc="bulk: columns per warpgroup and tile", when=BULK),
    Mutation(
        "ROW_OPERAND",
        ("a", "b"),
        doc="bulk: a warpgroup's rows are rows of A and C (a), or columns of B and C (b); its columns are the others",
        when=BULK,
        relieves={"tensor": 2, "latency": 1},
    ),
    Mutation(
        "SCHEDULE",
        ("together", "alternating"),
        doc="bulk: warpgroups share a tile of C, or multiply tiles alternately, while the others store theirs",
        when={**BULK, "CONSUMERS": (2, 3)},
        relieves={"latency": 2, "memory": 1},
    ),
    Parameter(
        "CLUSTER_M",
        (1, 2, 4),
        doc="bulk: blocks of a cluster below each other, which load the same columns of B once for all",
        when=BULK,
        relieves={"memory": 2},
    ),
    Parameter(
        "CLUSTER_N",
        (1, 2),
        doc="bulk: blocks of a cluster side by side, which load the same rows of A once for both",
        when=BULK,
        relieves={"memory": 2},
    ),
    Parameter(
        "SPLITS",
        (1, 2, 3, 4, 6, 8),
        doc="bulk: parts along K of a tile of C; the last to finish merges them",
        when=BULK,
        relieves={"launch": 2, "latency": 1},
    ),
    Mutation(
        "MERGE_PARTS",
        ("ticket", "cluster"),
        doc="bulk: merge of the parts along K by the block that finishes last, or between the blocks of a cluster",
        when={**BULK, "SPLITS": (2, 3, 4, 6, 8)},
        relieves={"launch": 2, "memory": 1},
    ),
    Parameter(
        "GRID_BLOCKS",
        GRIDS,
        doc="bulk: resident blocks that take the tiles one after another, per MIN_BLOCKS; 0 for a block per tile",
        when=BULK,
        for_chips={132: ("h100", "h200")},
        relieves={"launch": 2, "latency": 1},
    ),
    Parameter(
        "MIN_BLOCKS",
        (1, 2),
        doc="minimum resident blocks per SM, which limits the registers",
        relieves=("latency", "launch"),
    ),
)


def skinny(c):
    """Return whether the candidate uses the skinny path, for few rows of A."""
    return c["PATH"] == "skinny"


def tiled(c):
    """Return whether a block's warps load tiles of A and B together."""
    return c["PATH"] == "tiled"


def bulk(c):
    """Return whether a producer warp loads tiles by tensor copies."""
    return c["PATH"] == "bulk"


def on_wgmma(c):
    """Return whether warps that load tiles together use wgmma, so that the tensor cores read shared memory."""
    return tiled(c) and c["TENSOR_CORES"] == "wgmma"


def shape_compiled(c):
    """Return whether M, N and K are compile-time constants, as on the skinny path unless EXTENT=padded."""
    return skinny(c) or c["SHAPE"] == "compiled"


def transposed(p):
    """Return whether b has the shape [N, K], as torch's Linear stores its weights."""
    return p["layout"] == "nt"


def in_flight(c):
    """Return the number of steps in flight while one is multiplied."""
    return c.STAGES - (2 if on_wgmma(c) and c["FRAGMENTS"] == "ahead" else 1)


def row_lanes(c):
    """Return whether the lanes of a warp load long pieces of a row of weights together."""
    return skinny(c) and c["LANES"] == "row"


def lanes_along_depth(c):
    """Return the number of a warp's lanes along K: all lanes for plain FMAs on long pieces of rows."""
    return 32 if row_lanes(c) and c["PRODUCTS"] == "fma" else 4


def warp_columns(c):
    """Return the columns of C per warp on the skinny path."""
    return c.WARP_COLUMNS * 4 // lanes_along_depth(c)


def exchanged(c):
    """Return whether the blocks of a cluster exchange their parts of the sums along K."""
    return bulk(c) and c.SPLITS > 1 and c["MERGE_PARTS"] == "cluster"


def sharing_blocks(c):
    """Return the number of blocks that share loads."""
    return c.CLUSTER_M * c.CLUSTER_N


def cluster_blocks(c):
    """Return the number of blocks of a cluster on the bulk path."""
    return sharing_blocks(c) * (c.SPLITS if exchanged(c) else 1)


def rows_of_b(c):
    """Return whether the rows of a warpgroup are columns of B, on the bulk path."""
    return c["ROW_OPERAND"] == "b"


def extents(c, p):
    """Return the sizes of C along the rows and the columns of a warpgroup of the bulk path."""
    return (p.N, p.M) if rows_of_b(c) else (p.M, p.N)


def stored_columns(c):
    """Return the maximum number of columns of a tile that one block stores on the bulk path, in pairs of octets."""
    return 16 * -(-c.TILE_N // 16 // (c.SPLITS if exchanged(c) else 1))


def panel(columns):
    """Return the columns of a panel in shared memory, whose rows are swizzled: 32, 64 or 128 bytes."""
    return 64 if columns % 64 == 0 else 32 if columns % 32 == 0 else 16


def stored_panel(c):
    """Return the columns of a box of C."""
    even = not exchanged(c) or c.TILE_N // 16 % c.SPLITS == 0
    return panel(stored_columns(c)) if even else 16


def tile_rows(c):
    """Return the rows of a tile on the bulk path."""
    return c.CONSUMER_M * (c.CONSUMERS if c["SCHEDULE"] == "together" else 1)


def producer_registers(c):
    """Return the registers per thread of the producer's warpgroup after registers have moved."""
    return 40 - 8 * (c.CONSUMERS == 3)


def consumer_registers(c):
    """Return the registers per thread of the consumers on the bulk path; those at launch if none move."""
    at_launch = registers_allowed(c)
    moved = (at_launch * (c.CONSUMERS + 1) - producer_registers(c)) // c.CONSUMERS // 8 * 8
    return max(at_launch, min(240, moved))


def block_tile(c):
    """Return the rows and columns of C per block; blocks of the skinny path have all rows."""
    if bulk(c):
        return tile_rows(c), c.TILE_N
    return (SKINNY_ROWS, c.WARPS_ACROSS * warp_columns(c)) if skinny(c) else (c.BLOCK_M, c.BLOCK_N)


def tiles(c, p):
    """Return the number of tiles of C."""
    rows, columns = block_tile(c)
    if bulk(c):
        across, along = extents(c, p)
        return -(-across // (rows * c.CLUSTER_M)) * -(-along // (columns * c.CLUSTER_N)) * sharing_blocks(c)
    return -(-p.M // rows) * -(-p.N // columns)


def filled(c, sms):
    """Return how many of the multiprocessors clusters can fill; those of four and more leave some of a GPC idle."""
    return sms * 15 // 16 if cluster_blocks(c) > 2 else sms


def blocks(c, p):
    """Return the number of blocks for the tiles of C."""
    if bulk(c):
        # Clusters take equally many tiles, at least two: also small problems then show faults between tiles.
        items = tiles(c, p) * c.SPLITS // cluster_blocks(c)
        resident = filled(c, c.GRID_BLOCKS) * c.MIN_BLOCKS // cluster_blocks(c)
        turns = max(2, -(-items // resident)) if resident else 1
        return -(-items // turns) * cluster_blocks(c)
    return tiles(c, p) if skinny(c) else -(-tiles(c, p) // c.TILES)


def store_threads(c):
    """Return the additional threads per block that only store C."""
    return 128 if tiled(c) and c["EPILOGUE"] == "store_warps" else 0


def producer_threads(c):
    """Return the additional threads per block that only load tiles."""
    return 128 if bulk(c) or (tiled(c) and c["LOAD"] == "producer_warps") else 0


def compute_threads(c):
    """Return the threads per block that multiply."""
    if bulk(c):
        return 128 * c.CONSUMERS
    return 32 * (c.WARPS_ACROSS * c.WARPS_K if skinny(c) else c.WARPS_M * c.WARPS_N)


def loaders(c):
    """Return the threads per block that load tiles."""
    return producer_threads(c) or compute_threads(c)


def threads(c):
    """Return the threads per block."""
    return compute_threads(c) + producer_threads(c) + store_threads(c)


def pieces(c):
    """Return the number of 16-byte pieces of weights per lane and step on the skinny path."""
    return c.WARP_COLUMNS // 8 * (c.DEPTH // 32)


def block_rows(c, p):
    """Return the rows for which a block of the skinny path has sums: M, or a power of two."""
    if not skinny(c):
        return 0
    if c["EXTENT"] == "exact":
        return p.M
    least = 8 if c["PRODUCTS"] == "mma" else 1
    classes = [rows for rows in (1, 2, 4, 8, 16, 32, 64) if rows >= least]
    return next((rows for rows in classes if rows >= p.M), SKINNY_ROWS)


def activation_pieces(c, p):
    """Return the number of 16-byte pieces of A per lane and step on the skinny path."""
    rows = block_rows(c, p)
    return (-(-rows // 8) if c["PRODUCTS"] == "mma" else rows) * (c.DEPTH // 32)


def rows_read(c, p):
    """Return the rows of A that a warp of the skinny path reads, rounded up to mma tiles if it uses tensor cores."""
    rows = block_rows(c, p)
    return rows if lanes_along_depth(c) == 32 else -(-rows // 8) * 8


def stored_tiles(c, p):
    """Return rows and row pitch, in elements, of the tiles of A and B in shared memory."""
    if bulk(c):
        return (tile_rows(c), BULK_K), (c.TILE_N, BULK_K)
    pad = 8 if c["SMEM_LAYOUT"] == "padded" else 0
    rows, columns = (c.BLOCK_N, c.BLOCK_K) if transposed(p) else (c.BLOCK_K, c.BLOCK_N)
    return (c.BLOCK_M, c.BLOCK_K + pad), (rows, columns + pad)


def macros(c, p):
    """Return the problem and the sizes, which kernel.cu and skinny.cuh describe."""
    (a_rows, a_pitch), (b_rows, b_pitch) = stored_tiles(c, p)
    shape = (p.M, p.N, p.K) if shape_compiled(c) else (0, 0, 0)
    if c["EXTENT"] == "padded":
        shape = 0, 0, p.K
    return {
        "BF16": int(p["dtype"] == "bf16"), "NT": int(transposed(p)),
        **dict(zip(("ROWS_A", "COLUMNS_B", "DEPTH_A"), shape, strict=True)), "BLOCK_ROWS": block_rows(c, p),
        "THREADS": compute_threads(c), "PRODUCER_THREADS": producer_threads(c), "STORE_THREADS": store_threads(c),
        "ALL_THREADS": threads(c), "LOADERS": loaders(c), "IN_FLIGHT": in_flight(c),
        "A_PITCH": a_pitch, "B_PITCH": b_pitch, "A_STAGE": 2 * a_rows * a_pitch, "B_STAGE": 2 * b_rows * b_pitch,
        "DEPTH_LANES": lanes_along_depth(c), "BLOCK_COLUMNS": block_tile(c)[1], "PIECES": pieces(c),
        "TILE_M": tile_rows(c),
        "Y_PANEL": panel(c.TILE_N), "C_PANEL": stored_panel(c), "STAGED": staged_at(c), "BARRIERS": barriers_at(c),
        "RECEIVED": received_at(c),
        "C_STAGE": c_stage(c), "LAUNCH_REGISTERS": registers_allowed(c),
        "PRODUCER_REGISTERS": producer_registers(c),
        "CONSUMER_REGISTERS": consumer_registers(c),
    }  # fmt: skip


def ring_bytes(c):
    """Return the bytes of the ring of the bulk path."""
    return c.STAGES * 2 * BULK_K * sum(block_tile(c))


def exchanged_bytes(c):
    """Return the bytes of the sums that a block receives from others of its cluster."""
    return 4 * tile_rows(c) * stored_columns(c) * (c.SPLITS - 1) if exchanged(c) else 0


def c_stage(c):
    """Return the bytes in which a warpgroup of the bulk path stages its rows of a tile of C.

    A tile that is stored while the next one is loaded has its own memory: all of it, or twice 64 columns.
    """
    whole = 2 * c.CONSUMER_M * stored_columns(c)
    fits = ring_bytes(c) + c.CONSUMERS * whole + barrier_bytes(c) <= BULK_BYTES // c.MIN_BLOCKS
    return whole if c.GRID_BLOCKS == 0 or fits else min(whole, 256 * c.CONSUMER_M)


def barrier_bytes(c):
    """Return the bytes of the barriers of the bulk path, and of a word for each warpgroup."""
    return 16 * c.STAGES + 16


def received_at(c):
    """Return the place of the sums from other blocks of a cluster: after the ring if they fit, else in its memory."""
    fits = ring_bytes(c) + exchanged_bytes(c) + barrier_bytes(c) <= BULK_BYTES // c.MIN_BLOCKS
    return ring_bytes(c) if fits else 0


def staged_at(c):
    """Return the place of the staged tile of C; a block with one tile reuses the ring's memory."""
    if c.GRID_BLOCKS:
        return ring_bytes(c)
    return 0 if received_at(c) else exchanged_bytes(c)


def barriers_at(c):
    """Return the place of the barriers of the bulk path."""
    return max(ring_bytes(c), staged_at(c) + c.CONSUMERS * c_stage(c), received_at(c) + exchanged_bytes(c))


def shared_bytes(c, p):
    """Return the bytes of dynamic shared memory: the ring, or a tile of C that reuses its space."""
    if bulk(c):
        return barriers_at(c) + barrier_bytes(c)
    if skinny(c):
        places = pieces(c) + (activation_pieces(c, p) if c["FRAGMENTS"] == "ahead" else 0)
        ring = c.STAGES * places * threads(c) * 16 if c["LOAD"] == "cp_async" else 0
        return max(ring, 4 * c.WARPS_K * block_rows(c, p) * (block_tile(c)[1] + 4))
    ring = c.STAGES * sum(rows * pitch * 2 for rows, pitch in stored_tiles(c, p))
    tile = 2 * c.BLOCK_M * (c.BLOCK_N + 8) if c["EPILOGUE"] != "direct" and c.SPLIT_K == 1 else 0
    # With several tiles per block, the ring is in use while a tile is stored.
    return max(ring, tile) if c.TILES == 1 else ring + tile


def registers_allowed(c):
    """Return the registers per thread that the launch bounds allow, in units of eight."""
    return min(255, 65536 // (threads(c) * c.MIN_BLOCKS) // 8 * 8)


def skinny_registers(c, p):
    """Compare the registers that a thread of the skinny path needs with the limit from the launch bounds."""
    if not skinny(c):
        return True
    registers = c["LOAD"] == "registers"
    rows = block_rows(c, p)
    sums = c.WARP_COLUMNS // 8 * (2 * -(-rows // 8) if c["PRODUCTS"] == "mma" else rows)
    ahead = registers & (c["FRAGMENTS"] == "ahead")
    activations = 4 * activation_pieces(c, p) * (1 + (c.STAGES - 1) * ahead)
    weights = 4 * (c.STAGES * pieces(c) if registers else c.WARP_COLUMNS // 8)
    addresses = 40 + 48 * (c.VECTOR == 1)  # single-element loads need more registers to combine them
    return AtMost(sums + activations + weights + addresses, registers_allowed(c), "registers")


def policy_register(c):
    """Return whether ptxas generates valid code for cp.async with a cache policy.

    For 16 columns of FMAs per lane, ptxas 13.5 writes an illegal instruction (docs/lab/2026-11-27-kernels.md).
    """
    under_policy = skinny(c) and c["LOAD"] == "cp_async" and c["WEIGHT_POLICY"] == "evict_first"
    return not under_policy or c["PRODUCTS"] == "mma" or c.WARP_COLUMNS < 128


def bytes_in_flight(c, p, chip):
    """Compare the bytes of weights in flight with those that keep the chip's DRAM busy."""
    if not skinny(c):
        return True
    needed = skinny_registers(c, p).needed * threads(c)
    resident = min(
        chip.threads_per_sm // threads(c),
        chip.registers_per_sm // needed,
        chip.shared_bytes_per_sm // (shared_bytes(c, p) + chip.shared_bytes_reserved),
    )
    blocks = min(tiles(c, p) * c.SPLIT_K, chip.sms * max(resident, 1))
    wanted = min(chip.dram_bytes_per_s * DRAM_LATENCY_S, p.N * p.K / 2)  # small products: a quarter of the weights
    return AtMost(wanted, blocks * threads(c) * 16 * c.STAGES * pieces(c), "bytes")


def accumulator_registers(c):
    """Compare the registers that sums and fragments need with the limit from the launch bounds."""
    if not tiled(c):
        return True
    sums = c.BLOCK_M * c.BLOCK_N // compute_threads(c) // (1 + (c["ACCUMULATOR"] == "fp16"))
    fragments = (c.BLOCK_M // c.WARPS_M + c.BLOCK_N // c.WARPS_N) // 4 * (1 + (c["FRAGMENTS"] == "ahead"))
    fragments *= 1 - on_wgmma(c)
    chunks = (c.BLOCK_M + c.BLOCK_N) * c.BLOCK_K // loaders(c) // 8
    if c["LOAD"] == "producer_warps":
        # Other warps hold the chunks, but two roles in one program need more registers: 128 sums spill 8 and 104 bytes.
        held = 24 - 8 * shape_compiled(c)
    elif c["LOAD"] == "registers":  # 16-byte chunks in flight, source addresses, offsets of accesses, the workspace
        held = 5 * chunks + 2 * (8 // c.VECTOR) + 8 * (c.SPLIT_K > 1)
    else:
        held = chunks * (1 - shape_compiled(c))  # source addresses, unless the strides are constants
    # Single-element loads need more registers to combine them, and a split stores single sums.
    single = (c.VECTOR == 1) * (24 + 16 * (c.SPLIT_K > 1))
    return AtMost(sums + fragments + held + single + 24, registers_allowed(c), "registers")


def bulk_sums(c):
    """Compare the registers that sums need, with loads of other parts, with those of a consumer."""
    if not bulk(c):
        return True
    merge = 16 * (c.SPLITS > 1)
    return AtMost(c.CONSUMER_M * c.TILE_N // 128 + 32 + merge, consumer_registers(c), "registers")


def steps(c, p):
    """Return the number of steps along K, and the steps of each split."""
    if bulk(c):
        total = -(-p.K // BULK_K)
        return total, -(-total // c.SPLITS)
    total = -(-p.K // (c.DEPTH * lanes_along_depth(c) // 4 if skinny(c) else c.BLOCK_K))
    return total, -(-total // c.SPLIT_K)


def last_share(c, p):
    """Compare the first step of the last split with the number of steps; the bulk path divides the steps evenly."""
    total, share = steps(c, p)
    return AtMost(c.SPLITS if bulk(c) else (c.SPLIT_K - 1) * share + 1, total, "steps")


def bf16_instructions(c, p, chip):
    """Compare the chip's compute capability with that required for bf16 (PTX ISA, "mma": .bf16 from sm_80)."""
    major, minor = chip.compute_capability
    return AtMost(8.0 if p["dtype"] == "bf16" else 0.0, major + minor / 10)


def bulk_launch(c, p):
    """Return the launch of the bulk path; with a cluster, each block loads its part of the box that both need."""

    def loads(matrix, rows, sharers, columns):
        """Return the map of A or B: rows along K, or BULK_K rows of panels."""
        by_depth = matrix == "a" or transposed(p)
        box = (rows // sharers, BULK_K) if by_depth else (BULK_K // sharers, columns)
        return TileMap(matrix, box, f"{2 * box[1]}B")

    operands = "ba" if rows_of_b(c) else "ab"
    stored = (stored_panel(c), 64) if rows_of_b(c) else (c.CONSUMER_M, stored_panel(c))
    maps = (
        loads(operands[0], tile_rows(c), c.CLUSTER_N, 64),
        loads(operands[1], c.TILE_N, c.CLUSTER_M, panel(c.TILE_N)),
        TileMap("c", stored, f"{2 * stored[1]}B"),
    )
    return Launch(
        "matmul_bulk", blocks(c, p), threads(c), (*maps, "partial", *map(i32, (*extents(c, p), p.K))),
        shared_bytes=shared_bytes(c, p), min_blocks=c.MIN_BLOCKS, cluster=(cluster_blocks(c), 1, 1),
    )  # fmt: skip


def launches(c, p):
    """Return the launch of the product, and for MERGE=launch a second launch that adds the splits' sums."""
    if bulk(c):
        return [bulk_launch(c, p)]
    shape = (i32(p.M), i32(p.N)) if skinny(c) else (i32(p.M), i32(p.N), i32(p.K))
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
    """Return A, B and C, and a workspace for the partial sums of a split along K."""
    parts = (1 if exchanged(c) else c.SPLITS) if bulk(c) else c.SPLIT_K
    whole = (tiles(c, p), tile_rows(c), c.TILE_N) if bulk(c) else (p.M, p.N)
    partial = (parts, *whole) if parts > 1 else (1,)
    return {
        "a": Tensor(p["dtype"], (p.M, p.K), large=4.0),
        "b": Tensor(p["dtype"], (p.N, p.K) if transposed(p) else (p.K, p.N), large=4.0),
        "c": Tensor(p["dtype"], (p.M, p.N), "output"),
        "partial": Tensor("f32", partial, "workspace"),
    }


def reference(p, t):
    """Return the product in float64."""
    return {"c": t["a"] @ (t["b"].T if transposed(p) else t["b"])}


def cublas(p, t):
    """Return the product by torch.matmul or torch's linear layer, which call cuBLAS."""
    from torch.nn.functional import linear

    return {"c": linear(t["a"], t["b"]) if transposed(p) else t["a"] @ t["b"]}


def cublaslt(p, t):
    """Return the same product by cuBLASLt, which torch uses if it is the preferred library."""
    import torch

    if not t["a"].is_cuda:
        return cublas(p, t)
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        return cublas(p, t)
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def quack(p, t):
    """Return the product by quack, which tunes itself at the first call of a shape."""
    from quack.gemm_interface import gemm

    return {"c": gemm(t["a"], t["b"].T if transposed(p) else t["b"])}


def slices(p):
    """Return the slices: rows of a affect rows of c, and columns of b (rows for nt) affect columns of c."""
    return Slice({"a": 0, "c": 0}), Slice({"b": 0 if transposed(p) else 1, "c": 1})


WARPGROUPS = {"TENSOR_CORES": "wgmma", "BLOCK_M": 128, "WARPS_M": 8, "WARPS_N": 1, "BLOCK_K": 64, "STAGES": 4}
PERSISTENT = {**WARPGROUPS, "BLOCK_N": 256, "STAGES": 3, "TILES": 4}
COPY_ENGINE = {"PATH": "bulk", "GRID_BLOCKS": 132}
STARTING_POINTS = (
    # Two warpgroups with 64 rows each and four steps of 64, as in CUTLASS's kernels for Hopper
    # (`cutlass3x_sm90_tensorop_gemm_f16_…_128x256x64_…` and `…_128x128x64_…`).
    {**WARPGROUPS, "BLOCK_N": 256},
    {**WARPGROUPS, "BLOCK_N": 128},
    # The first of them with warps that only load or only store, and several tiles per block, as in CUTLASS's
    # warp-specialised persistent kernels (`KernelCpAsyncWarpSpecialized`).
    {**PERSISTENT, "LOAD": "producer_warps", "EPILOGUE": "shared", "SHAPE": "compiled"},
    {**PERSISTENT, "FRAGMENTS": "in_place", "EPILOGUE": "store_warps"},
    # The ladder of fast.cu (2 consumers of 64 x 256, then clusters), and alternating consumers as in CUTLASS's
    # `KernelTmaWarpSpecializedPingpong`: 17.2 us at 4096 x 4096 x 256 on an H200, cuBLAS 20.6.
    {**COPY_ENGINE, "TILE_N": 256, "STAGES": 4, "CLUSTER_M": 2},
    {**COPY_ENGINE, "CONSUMER_M": 128, "SCHEDULE": "alternating", "STAGES": 5},
    # For fewer tiles than multiprocessors: one tile per block, or the steps along K divided.
    {"PATH": "bulk", "TILE_N": 192, "STAGES": 4, "CLUSTER_M": 2},
    {"PATH": "bulk", "CONSUMERS": 3, "TILE_N": 192, "STAGES": 4, "SPLITS": 2, "MERGE_PARTS": "cluster"},
    {"PATH": "bulk", "CONSUMER_M": 128, "STAGES": 4, "SPLITS": 3},
    {"PATH": "skinny"},
    # Narrow blocks, so that all multiprocessors have work although each block processes all of K.
    {"PATH": "skinny", "LOAD": "registers", "WARP_COLUMNS": 32, "WARPS_K": 16},
    # Long pieces of rows of weights; for nt with 16 columns of C, or with two columns and all lanes along K.
    {"PATH": "skinny", "LANES": "row", "WARP_COLUMNS": 32, "DEPTH": 64},
    {"PATH": "skinny", "LANES": "row", "WARP_COLUMNS": 16, "DEPTH": 64},
    {"PATH": "skinny", "LANES": "row", "WARP_COLUMNS": 16, "PRODUCTS": "fma", "LOAD": "registers", "STAGES": 2},
)
"""Default choices of other matrix product kernels, and candidates for few rows."""


class Choices(dict):
    """Values of all genes, which are read like those of a candidate."""

    __getattr__ = dict.__getitem__


def unaligned(p):
    """Return how much longer L2 takes to deliver A and B, whose rows may start anywhere in its lines."""
    pitches = {"a": p.K, "b": p.K if transposed(p) else p.N}
    return {name: UNALIGNED if pitch % BULK_K else 1 for name, pitch in pitches.items()}


def bulk_cycles(c, p, chip):
    """Estimate the clock cycles of a candidate of the bulk path, in which blocks take waves of tiles.

    In a step along K, the tensor cores take half a cycle for each column of a wgmma. Shared memory moves 128 bytes per
    cycle: each tile once when it arrives, and both operands of each wgmma. All blocks share L2 and the power limit,
    which lowers the clock. L2 delivers unaligned rows at less than half its rate. While a tile is stored or merged,
    nothing is multiplied, unless warpgroups alternate.
    """
    rows, columns = block_tile(c)
    items = tiles(c, p) * c.SPLITS
    waves = -(-items // filled(c, chip.sms))
    x, y = map(unaligned(p).get, "ba" if rows_of_b(c) else "ab")
    y *= NARROW if panel(c.TILE_N) < 64 and not transposed(p) and not rows_of_b(c) else 1
    loaded = 2 * BULK_K * (x * rows / c.CLUSTER_N + y * columns / c.CLUSTER_M)
    tensor = rows * columns / 32
    memory = rows * columns / 64 + 2 * rows + columns
    step = max(waves * max(tensor, memory), items / chip.sms * max(tensor / POWER_SHARE, loaded / L2_BYTES))
    merged = 0 if c.SPLITS == 1 else EXCHANGE_CYCLES if exchanged(c) else MERGE_CYCLES
    last = rows * columns * (STORE_CYCLES + merged) + TICKET_CYCLES * (merged == MERGE_CYCLES)
    started = CLUSTER_CYCLES * (cluster_blocks(c) > 1)
    return started + steps(c, p)[1] * step + last * (1 if c["SCHEDULE"] == "alternating" else waves)


def bulk_points(p, chip):
    """Return the fastest candidates of the bulk path according to `bulk_cycles`, each with another tile or split."""
    if chip.compute_capability < (9, 0):
        return []
    default = {gene.name: gene.default for gene in GENES} | {"PATH": "bulk"}
    clusters = ((1, 1), (2, 1), (1, 2), (4, 1)) if max(unaligned(p).values()) > 1 else ((1, 1),)
    shapes = product(BULK_WARPGROUPS, BULK_SPLITS, clusters, BULK_COLUMNS, "ab")
    choices = [Choices(default, **dict(zip(BULK_TILE, (*w, *x, *y, *z), strict=True))) for w, x, y, *z in shapes]
    found = []
    for c in sorted(choices, key=lambda c: bulk_cycles(c, p, chip)):
        several = tiles(c, p) * c.SPLITS > chip.sms
        if c["SCHEDULE"] == "alternating" and not several:
            continue
        if chip.sms in GRIDS and several and c.SPLITS == 1:
            c["GRID_BLOCKS"] = chip.sms
        rings = (Choices(c, STAGES=stages) for stages in (8, 6, 5, 4, 3, 2))
        found += islice((ring for ring in rings if fits(ring, p, chip)), 1)
        if len(found) == BULK_POINTS:
            break
    return [{name: c[name] for name in BULK_GENES if c[name] != default[name]} | {"PATH": "bulk"} for c in found]


def fits(c, p, chip):
    """Return whether a candidate of the bulk path meets all constraints, and has enough shared memory."""
    rules = (rule for rule in kernel.constraints if rule.name.startswith("bulk_") or rule.name == "whole_last_share")
    return shared_bytes(c, p) <= chip.shared_bytes_per_block and all(rule.evaluate(c, p, chip).holds for rule in rules)


kernel = Kernel(
    name="matmul",
    genes=GENES,
    starting_points=STARTING_POINTS,
    starting_points_at=bulk_points,
    fields=(
        *(ProblemField(name, most=65536) for name in "MNK"),
        ProblemField("dtype", ("f16", "bf16"), "f16", doc="element type of a, b and c"),
        ProblemField("layout", ("nn", "nt"), "nn", later=True, doc="b is [K, N], or [N, K] as in linear layers"),
    ),
    launches=launches,
    macros=macros,
    architecture_suffix=lambda c: "a" if on_wgmma(c) or bulk(c) else "",
    vector_accesses=lambda c, p: [VectorAccess("rows of a, b and c", 2 * c.VECTOR, (2 * p.K, 2 * p.N))],
    constraints=(
        Constraint(
            "warp_rows",
            lambda c: not tiled(c) or divides(16 * c.WARPS_M, c.BLOCK_M),
            "the rows of a warp must be whole 16-row mma tiles",
        ),
        Constraint(
            "warp_columns",
            lambda c: not tiled(c) or divides(16 * c.WARPS_N, c.BLOCK_N),
            "the columns of a warp must be pairs of 8-column mma tiles",
        ),
        Constraint("mma_depth", lambda c: divides(16, c.BLOCK_K), "an mma processes 16 elements of K"),
        Constraint("ring", lambda c: c.STAGES >= 2, "two stages are needed: one is multiplied while another is filled"),
        Constraint(
            "a_tile_split",
            lambda c: not tiled(c) or divides(8 * loaders(c), c.BLOCK_M * c.BLOCK_K),
            "the number of chunks in the A tile must be a multiple of the number of loading threads",
        ),
        Constraint(
            "b_tile_split",
            lambda c: not tiled(c) or divides(8 * loaders(c), c.BLOCK_K * c.BLOCK_N),
            "the number of chunks in the B tile must be a multiple of the number of loading threads",
        ),
        Constraint(
            "accumulators_fit",
            accumulator_registers,
            "the sums must fit in registers, because spills cost more than this choice saves",
        ),
        Constraint(
            "async_width", lambda c: c["LOAD"] == "registers" or c.VECTOR >= 2, "cp.async copies at least 4 bytes"
        ),
        Constraint(
            "register_ring",
            lambda c: not tiled(c) or c["LOAD"] != "registers" or c.STAGES == 2,
            "registers can hold only one step in flight (STAGES=2)",
        ),
        Constraint(
            "ahead_needs_depth",
            lambda c: not tiled(c) or on_wgmma(c) or c["FRAGMENTS"] == "in_place" or divides(32, c.BLOCK_K),
            "two sets of fragments alternate within a step, so BLOCK_K must be a multiple of 32",
        ),
        Constraint(
            "wgmma_rows",
            lambda c: not on_wgmma(c) or divides(4, c.WARPS_M),
            "four warps along the rows multiply together, so WARPS_M must be a multiple of 4",
        ),
        Constraint(
            "wgmma_columns",
            lambda c, p: not on_wgmma(c) or transposed(p) or divides(64 * c.WARPS_N, c.BLOCK_N),
            "with layout=nn, rows of B are stored in panels of 64 columns",
        ),
        Constraint(
            "wgmma_ring",
            lambda c: not on_wgmma(c) or in_flight(c) > 0,
            "while one step is multiplied and one is awaited, another must be filled",
        ),
        Constraint(
            "bf16_sums",
            lambda c, p: p["dtype"] == "f16" or c["ACCUMULATOR"] == "fp32",
            "tensor cores accumulate bf16 products only in fp32; use ACCUMULATOR=fp32",
        ),
        Constraint(
            "bf16_instructions",
            bf16_instructions,
            "bf16 instructions need compute capability 8.0; use dtype=f16 on this chip",
        ),
        Constraint(
            "tiles_or_split",
            lambda c: not tiled(c) or c.TILES == 1 or c.SPLIT_K == 1,
            "blocks with several tiles do not support a split along K",
        ),
        Constraint(
            "tiles_async",
            lambda c: not tiled(c) or c.TILES == 1 or c["LOAD"] != "registers",
            "loads through registers would occupy registers with the next tile while a tile is stored",
        ),
        Constraint(
            "producers",
            lambda c: c["LOAD"] != "producer_warps" or (on_wgmma(c) and 3 <= c.STAGES <= 6 and c.SPLIT_K == 1),
            "producer warps need wgmma, and each stage needs two of the 16 named barriers",
        ),
        Constraint(
            "store_warps",
            lambda c: not tiled(c) or not store_threads(c) or c.TILES > 1,
            "warps that only store C need a next tile to overlap with, so TILES must be at least 2",
        ),
        Constraint(
            "tiles_for_all",
            lambda c, p, chip: not tiled(c) or c.TILES == 1 or AtMost(FEWEST_BLOCKS * chip.sms, blocks(c, p), "blocks"),
            "fewer blocks would leave multiprocessors idle",
            wasteful=True,
        ),
        Constraint("whole_last_share", last_share, "the last split must have at least one step"),
        Constraint(
            "skinny_rows",
            lambda c, p: not skinny(c) or p.M <= SKINNY_ROWS,
            "a warp keeps the sums of all rows of A in registers",
        ),
        Constraint(
            "skinny_columns",
            lambda c, p: not skinny(c) or transposed(p) or divides(32, c.WARP_COLUMNS),
            "with layout=nn, eight lanes load 4 or 8 columns each of a row of B",
        ),
        Constraint(
            "fma_rows",
            lambda c, p: not skinny(c) or c["PRODUCTS"] == "mma" or p.M <= 8,
            "plain FMAs support at most 8 rows of A, because every weight is multiplied by each row",
        ),
        Constraint(
            "async_policy",
            lambda c: not skinny(c) or c["LOAD"] == "registers" or c["WEIGHT_POLICY"] != "no_allocate",
            "cp.async always bypasses L1",
        ),
        Constraint(
            "policy_register",
            policy_register,
            "ptxas 13 puts the policy of these copies into an odd uniform register, which is illegal",
        ),
        Constraint(
            "row_lanes",
            lambda c, p: not row_lanes(c) or c["PRODUCTS"] == "mma" or transposed(p),
            "plain FMAs sum along the rows of b, so they need layout=nt",
        ),
        Constraint(
            "row_ring",
            lambda c: (
                not row_lanes(c)
                or c["PRODUCTS"] == "fma"
                or (c["LOAD"] != "registers" and c["FRAGMENTS"] == "ahead" and c.DEPTH >= 64)
            ),
            "for an mma, lanes exchange A and B through shared memory in pieces of at least 128 bytes",
        ),
        Constraint(
            "skinny_registers",
            skinny_registers,
            "the weights in flight must fit in registers, because spilled weights are loaded twice",
        ),
        Constraint(
            "tickets",
            lambda c, p: (
                (c["MERGE_PARTS"] == "cluster" or c.SPLITS == 1 if bulk(c) else c["MERGE"] == "launch")
                or AtMost(tiles(c, p), TICKETS, "tiles")
            ),
            "each split tile of C needs a counter",
        ),
        Constraint(
            "bulk_tile_rows",
            lambda c: not bulk(c) or tile_rows(c) <= 256,
            "a tensor copy has at most 256 rows",
        ),
        Constraint(
            "bulk_cluster",
            lambda c: not bulk(c) or AtMost(cluster_blocks(c), 8, "blocks"),
            "larger clusters are not portable",
        ),
        Constraint(
            "bulk_pairs",
            lambda c: not bulk(c) or cluster_blocks(c) == 1 or divides(2, cluster_blocks(c)),
            "a cluster occupies pairs of multiprocessors, so an odd one leaves many idle",
            wasteful=True,
        ),
        Constraint(
            "bulk_split",
            lambda c: (
                not bulk(c)
                or c.SPLITS == 1
                or (c.GRID_BLOCKS == 0 and c["SCHEDULE"] == "together" and c.TILE_N >= 16 * c.SPLITS)
            ),
            "parts are merged in the memory of the ring, so a block has one part of a tile",
        ),
        Constraint(
            "bulk_panels",
            lambda c, p: not bulk(c) or transposed(p) or rows_of_b(c) or divides(32, c.TILE_N),
            "with layout=nn, rows of B are stored in panels of at least 32 columns",
        ),
        Constraint(
            "bulk_parts",
            lambda c, p, chip: (
                not bulk(c) or c.SPLITS == 1 or exchanged(c) or AtMost(c.SPLITS * tiles(c, p), 4 * chip.sms, "parts")
            ),
            "enough tiles need no split",
            wasteful=True,
        ),
        Constraint("bulk_sums", bulk_sums, "the sums must fit in registers, because spills cost more than they save"),
        Constraint(
            "bulk_operands",
            lambda c: not bulk(c) or AtMost(c.TILE_N // 2 + 26, registers_allowed(c), "registers"),
            "the sums of one wgmma must fit in the registers at launch, before registers move (ptxas error C7602)",
        ),
        Constraint(
            "bulk_turns",
            lambda c, p: not bulk(c) or c["SCHEDULE"] == "together" or blocks(c, p) < tiles(c, p) * c.SPLITS,
            "with one tile per block, only one warpgroup would work",
            wasteful=True,
        ),
        Constraint(
            "bulk_columns",
            lambda c, p: not bulk(c) or AtMost(c.TILE_N, max(64, 2 * extents(c, p)[1]), "columns"),
            "most columns of a tile would be outside C",
            wasteful=True,
        ),
        Constraint(
            "widest_vectors",
            lambda c, p: not skinny(c) or 2 * c.VECTOR > 8 or p.K % (2 * c.VECTOR) + p.N % (2 * c.VECTOR) > 0,
            "narrower loads keep fewer bytes in flight and have no benefit",
            wasteful=True,
        ),
        Constraint(
            "bytes_in_flight", bytes_in_flight, "too few bytes are in flight to keep the DRAM busy", wasteful=True
        ),
        Constraint(
            "rows_from_cache",
            lambda c, p: not skinny(c) or AtMost(rows_read(c, p), 2 * warp_columns(c), "rows"),
            "more than two bytes of A per byte of weights make reading A from L1 the bottleneck",
            wasteful=True,
        ),
        Constraint(
            "stages_have_steps",
            lambda c, p: not skinny(c) or AtMost(c.STAGES, max(2, -(-steps(c, p)[1] // c.WARPS_K)), "stages"),
            "more stages than steps per warp would stay empty",
            wasteful=True,
        ),
        Constraint(
            "warps_have_steps",
            lambda c, p: not skinny(c) or c.WARPS_K == 1 or AtMost(c.WARPS_K, steps(c, p)[1], "steps"),
            "more warps than steps per split would have no work",
            wasteful=True,
        ),
    ),
    workload=Workload(
        tensors=tensors,
        reference=reference,
        # Products of two 16-bit numbers are exact in fp32.
        error={
            "c": SumOfProducts(
                terms=lambda p: p.K, accumulate=lambda c, p: "f16" if c["ACCUMULATOR"] == "fp16" else "f32"
            )
        },
        flops=lambda p: 2 * p.M * p.N * p.K,
        bytes=lambda p: 2 * (p.M * p.K + p.K * p.N + p.M * p.N),
        baselines=(
            Baseline("cuBLAS", cublas),
            Baseline("cuBLASLt", cublaslt),
            Baseline("quack", quack, requires="quack.gemm_interface"),
        ),
        small_problems=("M=144,N=160,K=96", "M=72,N=48,K=200", "M=5,N=136,K=1000", "M=1,N=72,K=4000"),
        slices=slices,
        nonfinite=("a", "b"),
    ),
)
