// Launch of a package's variants through the CUDA driver, which is loaded at run time: building needs no CUDA.
//
// The generated part, operator.cpp, includes this file. It defines the shape, the dispatch and the tables of launches.

#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/stable/library.h>

namespace {

// ---- integers as in Python

[[maybe_unused]] int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
[[maybe_unused]] int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }
[[maybe_unused]] int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }
[[maybe_unused]] int64_t bit_length(int64_t a) {
  int64_t bits = 0;
  for (uint64_t rest = a < 0 ? -static_cast<uint64_t>(a) : a; rest != 0; rest >>= 1) bits++;
  return bits;
}

// ---- the driver (cuda.h; values of its enumerations never change)

struct LaunchAttribute {
  int id = 0;
  int padding = 0;
  union {
    char bytes[64];
    int cooperative;
    unsigned cluster[3];
    struct {
      void* base;
      size_t bytes;
      float hit_ratio;
      int hit, miss;
    } window;
  } value = {};
};
static_assert(sizeof(LaunchAttribute) == 72);

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};

struct alignas(64) TensorMap {  // CUtensorMap
  uint64_t words[16];
};

constexpr int WINDOW = 1, COOPERATIVE = 2, CLUSTER = 4;           // CUlaunchAttributeID
constexpr int DYNAMIC_SHARED = 8, LARGE_CLUSTER = 14;             // CUfunction_attribute
constexpr int MAJOR = 75, MINOR = 76, MOST_PERSISTING = 108, MOST_WINDOW = 109;  // CUdevice_attribute
constexpr int PERSISTING_LIMIT = 6, RELAXED_CAPTURE = 2;          // CUlimit, CUstreamCaptureMode
constexpr int PROMOTE_128_BYTES = 2;                              // CUtensorMapL2promotion
constexpr int STATIC_SHARED = 48 * 1024;                          // more dynamic shared memory must be requested

struct Driver {
  int (*device_attribute)(int*, int, int);
  int (*retain_context)(void**, int);
  int (*current_context)(void**);
  int (*push_context)(void*);
  int (*pop_context)(void**);
  int (*get_limit)(size_t*, int);
  int (*set_limit)(int, size_t);
  int (*exchange_capture_mode)(int*);
  int (*capture_info)(void*, int*, unsigned long long*, void**, const void**, size_t*);
  int (*load)(void**, const void*);
  int (*unload)(void*);
  int (*function)(void**, void*, const char*);
  int (*set_attribute)(void*, int, int);
  int (*fill)(unsigned long long, unsigned char, size_t, void*);
  int (*launch)(const LaunchConfig*, void*, void**, void**);
  int (*describe)(int, const char**);
  int (*encode)(TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*,
                int, int, int, int);  // null before CUDA 12
  AOTITorchError (*current_stream)(int32_t, void**);

  Driver() {
    void* cuda = library("libcuda.so.1", 0);
    find(device_attribute, cuda, "cuDeviceGetAttribute");
    find(retain_context, cuda, "cuDevicePrimaryCtxRetain");
    find(current_context, cuda, "cuCtxGetCurrent");
    find(push_context, cuda, "cuCtxPushCurrent_v2");
    find(pop_context, cuda, "cuCtxPopCurrent_v2");
    find(get_limit, cuda, "cuCtxGetLimit");
    find(set_limit, cuda, "cuCtxSetLimit");
    find(exchange_capture_mode, cuda, "cuThreadExchangeStreamCaptureMode");
    find(capture_info, cuda, "cuStreamGetCaptureInfo_v2");
    find(load, cuda, "cuModuleLoadData");
    find(unload, cuda, "cuModuleUnload");
    find(function, cuda, "cuModuleGetFunction");
    find(set_attribute, cuda, "cuFuncSetAttribute");
    find(fill, cuda, "cuMemsetD8Async");
    find(launch, cuda, "cuLaunchKernelEx");
    find(describe, cuda, "cuGetErrorString");
    encode = reinterpret_cast<decltype(encode)>(dlsym(cuda, "cuTensorMapEncodeTiled"));
    find(current_stream, library("libtorch_cuda.so", RTLD_NOLOAD), "aoti_torch_get_current_cuda_stream");
  }

  static void* library(const char* name, int mode) {
    void* found = dlopen(name, RTLD_NOW | mode);
    if (found != nullptr) return found;
    const char* why = dlerror();  // none if the library is only not loaded
    throw std::runtime_error(std::string("cannot load ") + name + ": " + (why == nullptr ? "torch does not use it" : why));
  }

  template <typename Function>
  static void find(Function& function, void* library, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("the CUDA driver or torch has no ") + name);
  }

  void check(int error, const char* what) const {
    if (error == 0) return;
    const char* text = nullptr;
    describe(error, &text);
    throw std::runtime_error(std::string(what) + ": " + (text == nullptr ? "unknown error" : text));
  }
};

const Driver& driver() {
  static const Driver found;
  return found;
}

// ---- tables of the generated part

enum Kind { BUFFER, NUMBER, CONSTANT, MAP };

struct Slot {
  Kind kind;
  uint64_t value;  // index of a buffer, a number or a tensor map, or the bits of a constant
};

struct MapTable {
  int buffer;
  int dtype;  // CUtensorMapDataType
  int rank;
  int swizzle;  // CUtensorMapSwizzle
  int number;   // index of the first size; strides and box sizes follow the sizes
};

struct LaunchTable {
  int entry;
  int first;  // index of the first number
  bool cooperative;
  unsigned cluster[3];  // 0: none
  int window;           // index of the buffer that should stay in L2; -1: none
  float hit_ratio;
  const Slot* slots;
  int slot_count;
  const MapTable* maps;
};

struct Workspace {
  int number;  // index of its size in bytes
  bool zero;
};

struct VariantTable {
  int capability;
  uintptr_t alignment;
  bool large_cluster;
  bool keeps_state;  // each stream and each captured graph needs its own copy of the module variables
  const char* const* symbols;
  int symbol_count;
  const LaunchTable* launches;
  int launch_count;
  const Workspace* workspaces;
  int workspace_count;
};

struct BufferTable {
  int32_t dtype;  // in torch's numbers
  int rank;
};

constexpr int MOST_DEVICES = 64, MOST_SLOTS = 128, MOST_MAPS = 8, MOST_RANK = 64;
constexpr int64_t MOST_ELEMENTS = (int64_t{1} << 31) - 1;  // kernels may count with 32 bits

// ---- variants on a device

struct Loaded {
  void* module = nullptr;
  std::vector<void*> functions;
  std::vector<std::atomic<int>> shared_limits;
  explicit Loaded(int count) : functions(count), shared_limits(count) {}
  ~Loaded() { driver().unload(module); }  // only after an error: loaded code is kept until the process ends
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
};

struct Device {
  int capability = 0;
  void* context = nullptr;
};

std::mutex guard;

const Device& device(int index) {
  static std::array<std::atomic<const Device*>, MOST_DEVICES> devices = {};
  if (index < 0 || index >= MOST_DEVICES) throw std::runtime_error("the device's index is above 63");
  if (const Device* known = devices[index].load(std::memory_order_acquire)) return *known;
  const std::lock_guard<std::mutex> lock(guard);
  if (const Device* known = devices[index].load(std::memory_order_acquire)) return *known;
  auto made = std::make_unique<Device>();
  int major = 0, minor = 0;
  driver().check(driver().device_attribute(&major, MAJOR, index), "cannot read the compute capability");
  driver().check(driver().device_attribute(&minor, MINOR, index), "cannot read the compute capability");
  driver().check(driver().retain_context(&made->context, index), "cannot use the device");
  made->capability = 10 * major + minor;
  devices[index].store(made.get(), std::memory_order_release);
  return *made.release();
}

class ContextGuard {  // makes torch's context of a device current
 public:
  explicit ContextGuard(const Device& device) {
    void* current = nullptr;
    driver().current_context(&current);
    changed_ = current != device.context;
    if (changed_) driver().check(driver().push_context(device.context), "cannot use the device");
  }
  ~ContextGuard() {
    void* ignored = nullptr;
    if (changed_) driver().pop_context(&ignored);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  bool changed_ = false;
};

class CaptureGuard {  // allows loading code while the stream is captured; loading is not part of the graph
 public:
  CaptureGuard() { driver().exchange_capture_mode(&mode_); }
  ~CaptureGuard() { driver().exchange_capture_mode(&mode_); }
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;

 private:
  int mode_ = RELAXED_CAPTURE;
};

using Place = std::array<uint64_t, 3>;  // device, stream and graph that is being captured

struct Code {
  std::string cubin;
  std::array<std::atomic<Loaded*>, MOST_DEVICES> loaded = {};
  std::map<Place, Loaded*> own;  // for code with state
  std::atomic<uint64_t> calls = 0;
};

Loaded* load(const Code& code, const VariantTable& table, int device_index) {
  const CaptureGuard relaxed;
  auto made = std::make_unique<Loaded>(table.symbol_count);
  driver().check(driver().load(&made->module, code.cubin.data()), "cannot load the machine code");
  for (int i = 0; i < table.symbol_count; i++) {
    driver().check(driver().function(&made->functions[i], made->module, table.symbols[i]), "cannot find a kernel");
    if (!table.large_cluster) continue;
    driver().check(driver().set_attribute(made->functions[i], LARGE_CLUSTER, 1), "cannot use large clusters");
  }
  for (int i = 0; i < table.launch_count; i++) {
    size_t persisting = 0;
    int most = 0;
    if (table.launches[i].window < 0) continue;
    driver().get_limit(&persisting, PERSISTING_LIMIT);
    driver().device_attribute(&most, MOST_PERSISTING, device_index);
    if (persisting == 0) driver().set_limit(PERSISTING_LIMIT, most);  // without it, windows have no effect
  }
  return made.release();
}

Loaded& loaded(Code& code, const VariantTable& table, int device_index, void* stream) {
  auto& place = code.loaded[device_index];
  if (Loaded* known = place.load(std::memory_order_acquire)) return *known;
  const std::lock_guard<std::mutex> lock(guard);
  if (table.keeps_state) {
    int status = 0;
    unsigned long long graph = 0;
    driver().check(driver().capture_info(stream, &status, &graph, nullptr, nullptr, nullptr), "cannot use the stream");
    Loaded*& own = code.own[{static_cast<uint64_t>(device_index), reinterpret_cast<uint64_t>(stream),
                             status == 0 ? 0 : graph}];
    if (own == nullptr) own = load(code, table, device_index);
    return *own;
  }
  if (Loaded* known = place.load(std::memory_order_acquire)) return *known;
  Loaded* made = load(code, table, device_index);
  place.store(made, std::memory_order_release);
  return *made;
}

struct Memory {
  void* address;
  size_t bytes;
};

TensorMap encoded(const MapTable& table, const int64_t* numbers, void* address) {
  const int64_t *sizes = numbers + table.number, *strides = sizes + table.rank, *boxes = strides + table.rank - 1;
  uint64_t size[5] = {}, stride[5] = {};
  uint32_t box[5] = {};
  const uint32_t steps[5] = {1, 1, 1, 1, 1};
  std::copy_n(sizes, table.rank, size);
  std::copy_n(strides, table.rank - 1, stride);
  std::copy_n(boxes, table.rank, box);
  TensorMap made;
  if (driver().encode == nullptr) throw std::runtime_error("the CUDA driver has no cuTensorMapEncodeTiled; update it");
  driver().check(driver().encode(&made, table.dtype, table.rank, address, size, stride, box, steps, 0, table.swizzle,
                                 PROMOTE_128_BYTES, 0),
                 "cannot make a tensor map");
  return made;
}

// Enqueues the launches of one call on a stream of the current context.
void enqueue(const VariantTable& table, Loaded& code, const int64_t* numbers, const Memory* buffers, int device_index,
             void* stream) {
  for (int l = 0; l < table.launch_count; l++) {
    const LaunchTable& launch = table.launches[l];
    const int64_t* own = numbers + launch.first;
    uint64_t values[MOST_SLOTS];
    TensorMap maps[MOST_MAPS];
    void* parameters[MOST_SLOTS];
    for (int i = 0; i < launch.slot_count; i++) {
      const Slot& slot = launch.slots[i];
      if (slot.kind == MAP) {
        const MapTable& map = launch.maps[slot.value];
        maps[slot.value] = encoded(map, numbers, buffers[map.buffer].address);
        parameters[i] = &maps[slot.value];
        continue;
      }
      values[i] = slot.kind == BUFFER   ? reinterpret_cast<uint64_t>(buffers[slot.value].address)
                  : slot.kind == NUMBER ? static_cast<uint64_t>(numbers[slot.value])
                                        : slot.value;
      parameters[i] = &values[i];
    }
    LaunchAttribute attributes[3];
    LaunchConfig config = {};
    for (int axis = 0; axis < 3; axis++) {
      config.grid[axis] = static_cast<unsigned>(own[axis]);
      config.block[axis] = static_cast<unsigned>(own[3 + axis]);
    }
    config.shared_bytes = static_cast<unsigned>(own[6]);
    config.stream = stream;
    config.attributes = attributes;
    if (launch.cooperative) {
      attributes[config.count].id = COOPERATIVE;
      attributes[config.count++].value.cooperative = 1;
    }
    if (launch.cluster[0] != 0) {
      attributes[config.count].id = CLUSTER;
      std::copy_n(launch.cluster, 3, attributes[config.count++].value.cluster);
    }
    if (launch.window >= 0) {
      int most = 0;
      driver().device_attribute(&most, MOST_WINDOW, device_index);
      attributes[config.count].id = WINDOW;
      auto& window = attributes[config.count++].value.window;
      window.base = buffers[launch.window].address;
      window.bytes = std::min<size_t>(buffers[launch.window].bytes, most);
      window.hit_ratio = launch.hit_ratio;
      window.hit = 2;   // persisting
      window.miss = 1;  // streaming
    }
    std::atomic<int>& limit = code.shared_limits[launch.entry];
    const int shared = static_cast<int>(own[6]);
    if (shared > STATIC_SHARED && shared > limit.load(std::memory_order_relaxed)) {
      const std::lock_guard<std::mutex> lock(guard);  // the limit only grows
      if (shared > limit.load()) {
        driver().check(driver().set_attribute(code.functions[launch.entry], DYNAMIC_SHARED, shared),
                       "cannot reserve shared memory");
        limit.store(shared);
      }
    }
    driver().check(driver().launch(&config, code.functions[launch.entry], parameters, nullptr), "cannot launch");
  }
}

// ---- tensors

void checked(AOTITorchError error, const char* what) {
  if (error != TORCH_SUCCESS) throw std::runtime_error(what);
}

class Tensor {  // owns a handle; without the shared pointer of torch::stable::Tensor, which allocates memory
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  static Tensor taken(StableIValue value) { return Tensor(torch::stable::detail::to<AtenTensorHandle>(value)); }
  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }
  StableIValue given() { return torch::stable::detail::from(release()); }
  StableIValue shared() const {
    AtenTensorHandle made = nullptr;
    checked(aoti_torch_new_tensor_handle(handle_, &made), "cannot pass a tensor");
    return torch::stable::detail::from(made);
  }
  void* data() const {
    void* found = nullptr;
    checked(aoti_torch_get_data_ptr(handle_, &found), "a tensor has no memory");
    return found;
  }

 private:
  AtenTensorHandle handle_ = nullptr;
};

struct Facts {  // of an input
  int32_t dtype = 0, type = 0, index = 0;
  int64_t rank = 0, elements = 1;
  int64_t* sizes = nullptr;
  bool contiguous = false;

  explicit Facts(const Tensor& tensor) {
    AtenTensorHandle given = tensor.get();
    checked(aoti_torch_get_dtype(given, &dtype), "an input has no data type");
    checked(aoti_torch_get_device_type(given, &type), "an input has no device");
    checked(aoti_torch_get_device_index(given, &index), "an input has no device");
    checked(aoti_torch_get_dim(given, &rank), "an input has no dimensions");
    checked(aoti_torch_get_sizes(given, &sizes), "an input has no sizes");
    checked(aoti_torch_is_contiguous(given, &contiguous), "an input has no strides");
    for (int64_t axis = 0; axis < rank; axis++) elements *= sizes[axis];
  }

  // Returns whether this input has the type and rank of a table, is on a GPU, and has no gaps and a fitting size.
  bool fits(const BufferTable& table, int device_index) const {
    return dtype == table.dtype && rank == table.rank && index == device_index &&
           type == aoti_torch_device_type_cuda() && contiguous && elements >= 1 && elements <= MOST_ELEMENTS;
  }
};

[[maybe_unused]] size_t bytes_of(const int64_t* extents, int rank, int32_t dtype) {
  size_t bytes = aoti_torch_dtype_element_size(dtype);
  for (int axis = 0; axis < rank; axis++) bytes *= extents[axis];
  return bytes;
}

Tensor empty(const int64_t* extents, int rank, int32_t dtype, int device_index) {
  int64_t strides[MOST_RANK];
  int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; axis--) {
    strides[axis] = stride;
    stride *= extents[axis];
  }
  AtenTensorHandle made = nullptr;
  if (aoti_torch_empty_strided(rank, extents, strides, dtype, aoti_torch_device_type_cuda(), device_index, &made) !=
      TORCH_SUCCESS) {
    throw std::runtime_error("cannot allocate " + std::to_string(stride * aoti_torch_dtype_element_size(dtype)) +
                             " bytes on the GPU for a result or a workspace");
  }
  return Tensor(made);
}

}  // namespace
