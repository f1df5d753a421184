// The members of an aggregate and their names, so that a struct lists them once. C++20 has no list of them, but
// structured bindings take all of a known number, and compilers spell the name of one that is a template argument.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tessella::cuda {

// Converts to any member's type.
struct AnyMember {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
template <class S, class... Members>
consteval size_t num_members() {
  if constexpr (requires { S{Members{}..., AnyMember{}}; }) {
    return num_members<S, Members..., AnyMember>();
  } else {
    return sizeof...(Members);
  }
}

// References to them, in order.
template <class S>
constexpr auto members(const S& s) {
  static_assert(std::is_class_v<S> && std::is_aggregate_v<S>, "no aggregate: its members cannot be listed");
  static_assert(num_members<S>() >= 1 && num_members<S>() <= 16, "a line below lists as many members as S has");
#define TESSELLA_LIST(num, ...)              \
  if constexpr (num_members<S>() == (num)) { \
    const auto& [__VA_ARGS__] = s;           \
    return std::tie(__VA_ARGS__);            \
  }
  TESSELLA_LIST(1, a);
  TESSELLA_LIST(2, a, b);
  TESSELLA_LIST(3, a, b, c);
  TESSELLA_LIST(4, a, b, c, d);
  TESSELLA_LIST(5, a, b, c, d, e);
  TESSELLA_LIST(6, a, b, c, d, e, f);
  TESSELLA_LIST(7, a, b, c, d, e, f, g);
  TESSELLA_LIST(8, a, b, c, d, e, f, g, h);
  TESSELLA_LIST(9, a, b, c, d, e, f, g, h, i);
  TESSELLA_LIST(10, a, b, c, d, e, f, g, h, i, j);
  TESSELLA_LIST(11, a, b, c, d, e, f, g, h, i, j, k);
  TESSELLA_LIST(12, a, b, c, d, e, f, g, h, i, j, k, l);
  TESSELLA_LIST(13, a, b, c, d, e, f, g, h, i, j, k, l, m);
  TESSELLA_LIST(14, a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  TESSELLA_LIST(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  TESSELLA_LIST(16, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
#undef TESSELLA_LIST
}

template <class S>
inline constexpr S kSample{};
// clang takes a pointer to a part of an object as a template argument only within a struct.
template <class T>
struct Pointer {
  const T* to;
};
template <class T>
Pointer(const T*) -> Pointer<T>;

// Ends with the name that is asked for, and brackets:
//   g++:   "... [with Pointer<...auto...> member = Pointer<int>{(& kSample<Config>.Config::tile_q)}]"
//   clang: "... [member = {&kSample.tile_q}]"
//   both of a type: "... S = tessella::portable::Elements]"
template <Pointer member>
consteval const char* signature() {
  return __PRETTY_FUNCTION__;
}
template <class S>
consteval const char* signature() {
  return __PRETTY_FUNCTION__;
}
consteval std::string_view last_name(std::string_view signature) {
  const size_t end = signature.find_last_not_of(")}]") + 1;
  const size_t begin = signature.find_last_of(".:", end) + 1;
  return signature.substr(begin, end - begin);
}
// Without its namespaces.
template <class S>
consteval std::string_view type_name() {
  return last_name(signature<S>());
}
template <class S, size_t idx>
consteval std::string_view member_name() {
  return last_name(signature<Pointer{&std::get<idx>(members(kSample<S>))}>());
}

// Calls visit(name, value) for each member, in order.
template <class S, class Visit>
constexpr void visit_members(const S& s, const Visit& visit) {
  const auto visit_all = [&]<size_t... idx>(std::index_sequence<idx...>) {
    (visit(member_name<S, idx>(), std::get<idx>(members(s))), ...);
  };
  visit_all(std::make_index_sequence<num_members<S>()>());
}

}  // namespace tessella::cuda
