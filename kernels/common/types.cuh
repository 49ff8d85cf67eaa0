// Basic types for the headers of this folder.
// 16-bit floats are raw bits, single (Half) or in pairs (Half2), because cuda_fp16.h would add 0.2 s per compile.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;
using Half = unsigned short;  // bits of one IEEE half, or of one bfloat16 if the problem macro BF16 is 1
using Half2 = unsigned int;   // two halves, the lower one first in memory

struct __align__(16) Chunk {  // 16 bytes, the widest vector access
  u32 v[4];
};
