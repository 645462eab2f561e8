// Ctrl-C as a flag that a loop polls. The second Ctrl-C ends the program at once.
#pragma once

#include <atomic>

namespace gradus::cli {

// From now on the first SIGINT or SIGTERM only sets the flag.
const std::atomic<bool>& catch_interrupts();

// The exit status of a program that the caught signal ended: 130 for Ctrl-C.
int interrupted_status();

}  // namespace gradus::cli
