"""Send files to a server: python client.py http://localhost:8080 FILE..."""

import pathlib
import sys

import numpy as np
from qatline_client import Client

client = Client(sys.argv[1], pathlib.Path(__file__).parent)
for file in sys.argv[2:]:  # arrays of raw samples, or images
    is_array = file.endswith(".npy")
    found = client.predict(np.load(file)) if is_array else client.predict_files([file])
    print(file, *found)
