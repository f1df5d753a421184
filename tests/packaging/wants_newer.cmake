find_package(tessella 0.99 REQUIRED)
