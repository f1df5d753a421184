// A target needs a source; this one has nothing but the precompiled header that suites share.
