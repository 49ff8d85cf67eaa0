// Short type names of sys/types.h, which nvcc provides through its implicit stdlib.h on Linux.
#pragma once
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
