"""Object stores: what proves their answers, retries them and reads them, for all kinds of stores."""
