// Ctrl-C as a flag that a loop polls. The second Ctrl-C ends the program at once.
#pragma once

#include <atomic>

namespace gradus::cli {

// From now on the first SIGINT or SIGTERM only sets the flag, which it says on standard error; so
// does every SIGHUP, as a terminal that is closed sends more than one. A signal that is ignored
// from the start stays so: SIGHUP under nohup, SIGINT in the background of a script. Writing to a
// pipe that nobody reads no longer ends the program.
const std::atomic<bool>& catch_interrupts();

// The exit status of a program that the caught signal ended: 130 for Ctrl-C.
int interrupted_status();

}  // namespace gradus::cli
