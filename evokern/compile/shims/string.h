// memcpy, memset and their like are NVRTC's own.
#pragma once
