PRAGMA application_id=1718378862;
PRAGMA user_version=1;
BEGIN TRANSACTION;
CREATE TABLE lease (
    name TEXT PRIMARY KEY,      -- flannel's key: 10.5.52.0-24
    node TEXT NOT NULL,         -- empty: nobody holds it
    value TEXT NOT NULL,        -- flannel's JSON; empty: a reservation that nobody holds
    reserved INTEGER NOT NULL,
    expires_at REAL             -- Unix seconds; NULL: never
) WITHOUT ROWID
;
INSERT INTO "lease" VALUES('10.5.26.0-24','h3','{"PublicIP":"10.99.0.13","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"e6:6f:38:95:7c:89"}}',0,1795556968.0);
INSERT INTO "lease" VALUES('10.5.42.0-24','h2','{"PublicIP":"10.99.0.12","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"26:a4:52:4e:1e:4e"}}',0,1795556966.0);
INSERT INTO "lease" VALUES('10.5.52.0-24','h1','{"PublicIP":"10.99.0.11","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:ad:ae:b8:b4:6e"}}',0,1795556965.0);
COMMIT;
