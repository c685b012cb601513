// The device "strict": torch's reserved type PrivateUse1, as a vendor adds it from outside.
//
// Two devices whose memory is the host's and whose operations are the CPU's, run at once. What a
// small accelerator lacks is lacking: no float64 and no complex128, no automatic mixed precision,
// no page-locked memory, no collectives. It has its own allocator, streams, events and generators.
// The interfaces are those that torch documents for a new accelerator:
// https://docs.pytorch.org/docs/2.13/accelerator/index.html
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>
#include <mutex>
#include <unordered_set>

namespace {

constexpr auto kKind = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;
constexpr size_t kMemoryBytes = size_t{2} << 30;

// ---- the device that is current, and its streams: of each thread ----

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_stream{};
std::atomic<c10::StreamId> last_stream{0};

c10::Device full(c10::Device device) {
  return device.has_index() ? device : c10::Device(kKind, current_device);
}

void check_index(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "there is no device strict:", int(index));
}

struct Event {
  std::chrono::steady_clock::time_point time;
};

// Work is done when its call returns, so that there is nothing to wait for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kKind; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kKind, current_device}; }
  void setDevice(c10::Device device) const override {
    check_index(device.index());
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    const auto whole = full(device);
    return c10::Stream(c10::Stream::UNSAFE, whole, current_stream.at(whole.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, full(device));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, full(device), ++last_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_stream.at(stream.device_index()) = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex index) const override { check_index(index); }

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag)
      const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->time = std::chrono::steady_clock::now();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    const auto passed = static_cast<Event*>(end)->time - static_cast<Event*>(start)->time;
    return std::chrono::duration<double, std::milli>(passed).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// ---- memory ----

struct Block {
  void* memory;
  size_t bytes;
  c10::DeviceIndex device;
};

using c10::CachingDeviceAllocator::DeviceStats;

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const auto device = current_device;
    const std::lock_guard<std::mutex> held(lock);
    auto& stats = of_device.at(device);
    const auto used = static_cast<size_t>(stats.allocated_bytes[0].current);
    // an out-of-memory text that no other vendor has
    TORCH_CHECK(bytes <= kMemoryBytes - used, "strict:", int(device), " has no room for ", bytes,
                " bytes: ", kMemoryBytes - used, " are free");
    void* memory = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    auto* block = new Block{memory, bytes, device};
    stats.allocated_bytes[0].increase(bytes);
    stats.reserved_bytes[0].increase(bytes);
    return {memory, block, &release, c10::Device(kKind, device)};
  }
  static void release(void* context);
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    check_index(device);
    const std::lock_guard<std::mutex> held(lock);
    return of_device.at(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { reset(device, false); }
  void resetPeakStats(c10::DeviceIndex device) override { reset(device, true); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto used = getDeviceStats(device).allocated_bytes[0].current;
    return {kMemoryBytes - used, kMemoryBytes};
  }

 private:
  void reset(c10::DeviceIndex device, bool peak) {
    check_index(device);
    const std::lock_guard<std::mutex> held(lock);
    auto& stats = of_device.at(device);
    for (auto* each : {&stats.allocated_bytes[0], &stats.reserved_bytes[0]})
      peak ? each->reset_peak() : each->reset_accumulated();
  }
  std::mutex lock;
  std::array<DeviceStats, kDevices> of_device;
};
Allocator allocator;
REGISTER_ALLOCATOR(kKind, &allocator)

void Allocator::release(void* context) {
  const auto* block = static_cast<Block*>(context);
  const std::lock_guard<std::mutex> held(allocator.lock);
  auto& stats = allocator.of_device.at(block->device);
  stats.allocated_bytes[0].decrease(block->bytes);
  stats.reserved_bytes[0].decrease(block->bytes);
  std::free(block->memory);
  delete block;
}

// ---- random numbers: the CPU's, with a state for each device ----

struct GeneratorImpl final : at::CPUGeneratorImpl {
  explicit GeneratorImpl(c10::DeviceIndex index) {
    device_ = c10::Device(kKind, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

at::Generator& default_generator(c10::DeviceIndex index) {
  static std::array<at::Generator, kDevices> generators = {
      at::make_generator<GeneratorImpl>(0), at::make_generator<GeneratorImpl>(1)};
  const auto device = index < 0 ? current_device : index;
  check_index(device);
  return generators.at(device);
}

void exchange_states(at::CPUGeneratorImpl& one, at::CPUGeneratorImpl& other) {
  const auto engine = one.engine();
  const auto single = one.next_float_normal_sample();
  const auto wide = one.next_double_normal_sample();
  one.set_engine(other.engine());
  one.set_next_float_normal_sample(other.next_float_normal_sample());
  one.set_next_double_normal_sample(other.next_double_normal_sample());
  other.set_engine(engine);
  other.set_next_float_normal_sample(single);
  other.set_next_double_normal_sample(wide);
}

// The CPU's default generator has the state of another one as long as this lives.
class Drawing {
 public:
  explicit Drawing(const at::Generator& from)
      : cpu_(at::detail::getDefaultCPUGenerator()), from_(from), held_(lock_) {
    exchange();
  }
  ~Drawing() { exchange(); }

 private:
  void exchange() {
    exchange_states(*at::check_generator<at::CPUGeneratorImpl>(cpu_),
                    *static_cast<at::CPUGeneratorImpl*>(from_.unsafeGetGeneratorImpl()));
  }
  static std::recursive_mutex lock_;
  at::Generator cpu_, from_;
  std::lock_guard<std::recursive_mutex> held_;
};
std::recursive_mutex Drawing::lock_;

// ---- what torch asks of an accelerator ----

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    check_index(index);
    current_device = index;
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current_device;
    setCurrentDevice(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<GeneratorImpl>(index < 0 ? current_device : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard on(storage.device());
    auto grown = allocator.allocate(bytes);
    std::memcpy(grown.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(grown));
    storage.set_nbytes(bytes);
  }
};
Hooks hooks;
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::register_privateuse1_backend("strict");
  return true;
}();

// ---- operations ----

// A TypeError, as Apple's MPS raises it: pytorch v2.13.0, aten/src/ATen/mps/EmptyTensor.cpp
void check_dtype(at::ScalarType dtype) {
  static const std::unordered_set<at::ScalarType> held = {
      at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
      at::kHalf, at::kBFloat16, at::kFloat, at::kComplexFloat};
  TORCH_CHECK_TYPE(held.count(dtype), "the strict device has no ", dtype);
}

c10::Device device_of(std::optional<c10::Device> device) {
  return full(device.value_or(c10::Device(kKind)));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "only dense CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == at::kStrided,
                              "the strict device has dense tensors only");
  const auto kind = c10::dtype_or_default(dtype);
  check_dtype(kind);
  const c10::DeviceGuard on(device_of(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &allocator, keys, kind, format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<c10::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "only dense CPU tensors can be pinned");
  const auto kind = c10::dtype_or_default(dtype);
  check_dtype(kind);
  const c10::DeviceGuard on(device_of(device));
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), kind);
}

// The same memory as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  const auto& storage = tensor.storage();
  auto flat = at::from_blob(storage.mutable_data(),
                            {static_cast<int64_t>(storage.nbytes() / tensor.element_size())},
                            tensor.options().device(at::kCPU));
  auto seen = flat.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) seen = at::_conj(seen);
  return tensor.is_neg() ? at::_neg_view(seen) : seen;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  at::NoGradGuard no_grad;
  on_host(to).copy_(on_host(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  at::native::resize_(to, self.sizes(), std::nullopt);
  return copy_from(self, to, false);
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  return at::_local_scalar_dense(on_host(self));
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset,
                        c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, source, offset, size, stride);
}

// Convolutions have a hook of their own for devices from outside.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                       c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  std::optional<at::Tensor> added;
  if (bias && bias->defined()) added = on_host(*bias);
  return at::convolution_symint(on_host(input), on_host(weight), added, stride, padding, dilation,
                                transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
    bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> wanted) {
  const c10::SymInt channels = transposed ? weight.sym_size(1) * groups : weight.sym_size(0);
  auto [of_input, of_weight, of_bias] = at::convolution_backward_symint(
      on_host(gradient), on_host(input), on_host(weight), c10::SymIntArrayRef(channels), stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  const auto back = [&](const at::Tensor& made) {
    return made.defined() ? made.to(input.device()) : made;
  };
  return {back(of_input), back(of_weight), back(of_bias)};
}

// Its kernel is in a table of devices that one from outside has no place in.
at::Tensor& conj_physical_(at::Tensor& self) {
  on_host(self).conj_physical_();
  return self;
}

void record_stream(at::Tensor&, c10::Stream) {}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::optional<at::Generator> given;
  c10::DeviceIndex device = current_device;
  const auto count = op.schema().arguments().size();
  auto place = stack->end() - static_cast<std::ptrdiff_t>(count);
  for (; place != stack->end(); ++place) {
    auto& each = *place;
    if (each.isGenerator() && each.toGenerator().device().type() == kKind) {
      given = each.toGenerator();
      each = c10::IValue();
    } else if (each.isTensor() && each.toTensor().defined() && each.toTensor().is_privateuseone()) {
      device = each.toTensor().device().index();
    }
  }
  const c10::DeviceGuard on(c10::Device(kKind, device));
  std::optional<Drawing> drawing;
  if (op.hasTag(at::Tag::nondeterministic_seeded))
    drawing.emplace(given ? *given : default_generator(device));
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("conj_physical_", &conj_physical_);
  m.impl("record_stream", &record_stream);
}

// Without it the fallback of these keys copies the tensor, which calls _copy_from again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

std::optional<at::Generator> generator(int64_t index) { return default_generator(index); }

TORCH_LIBRARY(portagpu_strict, m) {
  m.def("generator(int index) -> Generator?", &generator);
}

}  // namespace
