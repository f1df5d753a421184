// Two threads write one int without order. A build for ThreadSanitizer in which this program ends well watches nothing:
// CI runs it and wants it to fail.
#include <cstdio>
#include <thread>

int main() {
  int shared = 0;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) ++shared;
  });
  for (int i = 0; i < 1000; ++i) ++shared;
  other.join();
  std::printf("%d\n", shared);
}
