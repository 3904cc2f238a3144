FROM apache/beam_python3.11_sdk:2.77.0
COPY . /tpudata
RUN pip install '/tpudata[gcp]'
