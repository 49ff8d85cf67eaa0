// NVRTC provides malloc, free and abs.
#pragma once
#include "stddef.h"
#include "evokern_types.h"
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
#define RAND_MAX 2147483647
