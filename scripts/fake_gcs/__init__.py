"""A small Google Cloud Storage on loopback, for tests and for trials on one machine.

It supports the requests of google-cloud-storage, Beam's GcsIO and TensorFlow's built-in client for gs://: the JSON API and reads of
the XML API, by HTTP on a port of loopback, and by HTTPS as googleapis.com for clients that use the port as a proxy. Objects are in
memory. Requests can be delayed, and made to fail.

    with FakeGcs() as store:
        store.bucket("b")
        store.faults.add(Fault("503", "read", count=2))
        subprocess.run(command, env=os.environ | environment(store, folder))

`python -m scripts.fake_gcs` serves until it is interrupted.
"""

from scripts.fake_gcs.environment import environment, proxied_environment, service_account
from scripts.fake_gcs.faults import Fault, Faults
from scripts.fake_gcs.objects import Object
from scripts.fake_gcs.server import FakeGcs

__all__ = ["FakeGcs", "Fault", "Faults", "Object", "environment", "proxied_environment", "service_account"]
