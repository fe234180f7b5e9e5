"""Device profiles as TOML files: read with strict checks, and written.

Schema, version 1. A quantity is a text with its unit ("34 GB/s", "20 us"); every value says which
of the file's sources it is from. Operations count a multiply-add as two. What no device has, as
a time of more than a day, is refused with the range.

The kind of a source is `data sheet` (or product page, or brief: of the maker itself), `third-party
specification` (what somebody else says that the maker says), `computed from specifications` (as
cores x clock x operations a cycle), `published measurement`, `measured` (on the device itself) or
`estimate`.

    version = 1
    id = "raspberry-pi-5-8gb"          # a-z 0-9 -
    name = "Raspberry Pi 5, 8 GB"

    [sources.brief]                    # any key of a-z 0-9 - _
    text = "Raspberry Pi 5 product brief"
    kind = "data sheet"                # of the maker itself; else one of the kinds below
    date = 2026-11-29                  # when it was read or measured
    url = "https://…"                  # optional

    [memory]
    size = { value = "8 GiB", source = "brief" }
    available = { … }                  # optional: what the system leaves of it

    [network]                          # optional, as each key: a core's time per byte
    send = { value = "0.6 ns/B", source = "…" }
    receive = { … }
    encrypted_send = { … }
    encrypted_receive = { … }

    [power]                            # optional
    idle = { value = "2.7 W", source = "…" }      # the whole device

    [units.cpu]                        # the processor must be called cpu
    kind = "CPU"                       # GPU, NPU
    cores = { value = 4, source = "brief" }       # of a CPU, and only of one
    # All cores, for float32, float16, int8. What was measured, here or by others, is taken as it
    # is; of what a data sheet tells or was reckoned, a matrix product reaches three quarters.
    peak.float32 = { value = "76.8 GFLOP/s", source = "…" }
    core_peak.float32 = { … }          # optional: the fastest core, where cores differ
    bandwidth = { value = "10 GB/s", source = "…" }            # all cores
    core_bandwidth = { … }             # optional: what one core gets of it
    launch = { value = "20 us", source = "…" }    # starting a subgraph
    operator = { value = "2 us", source = "…" }   # what an operator costs however small it is
    busy = { value = "8.0 W", source = "…" }      # optional: the whole device, this unit busy;
                                       # above 0 W, and left out where it is not known
    idle = { … }                       # optional: of the unit alone; then busy is of it alone, too
    memory = { … }                     # only if it has memory of its own
    border = { value = "0.1 ns/B", source = "…" } # optional: a byte on its way to or from the unit
    layouts = ["NCHW", "blocked"]      # optional; also NHWC; "native" of other units than a CPU
    threads = [1, 4]                   # optional, of a CPU: which thread counts to plan with
    takes = ["int8"]                   # optional: all if it has a peak for float32, else its peaks
    refuses = ["Resize"]               # optional: operators that it does not take

    [units.cpu.efficiency]             # optional: share of the peak that operators reach
    convolution = { value = 0.5, source = "…" }   # grouped, depthwise, product, recurrent, pool,
                                       # elementwise, normalisation, movement, other

    [[latency]]                        # optional, measured: it beats estimates
    model = "…"                        # SHA-256 of the model, in hexadecimal
    source = "…"
    starts = [0, 12]                   # first node of each segment
    shapes = { images = [1, 3, 224, 224] }
    unit = "cpu"
    layout = "NCHW"
    threads = 1
    instances = 1                      # optional, as all from here but segment_s: runs at once,
                                       # which with their threads need no more cores than there are
    falls_back = false
    is_half = false
    segment_s = [0.001, 0.002]
    overhead_s = 0.0
    border_s_per_byte = 0.0
    turn_s_per_byte = 0.0
    error_fraction = 0.0
    is_divisible = true
    refused = []
"""
