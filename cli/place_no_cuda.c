/* place_no_cuda.c - stands in for place_cuda.c where the build has no CUDA: it cannot be opened */
#include "place.h"
#include "thinwire.h"

static int refuse(place *here) {
    int error = tw_cuda_device(0, NULL);
    return error != TW_OK ? place_library_failure(here, "preparing", error)
                          : place_failure(here, "this command was built without CUDA");
}

const place_kind place_cuda = {.name = "cuda", .open = refuse};
