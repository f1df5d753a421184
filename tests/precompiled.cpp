// The target of the precompiled header that suites share wants a source.
