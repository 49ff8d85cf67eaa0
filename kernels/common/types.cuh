// Words of the machine, shared by the headers of this folder.
// 16-bit floats travel as raw bits, alone (Half) or two to a register (Half2): cuda_fp16.h would cost 0.2 s a compile.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;
using Half = unsigned short;  // bits of one IEEE half; of one bfloat16 in a kernel whose problem macro BF16 is 1
using Half2 = unsigned int;   // two of them, the lower one first in memory

struct __align__(16) Chunk {  // 16 bytes: what one vector access moves at most
  u32 v[4];
};
