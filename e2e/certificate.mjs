// A certificate that signs itself, as DER is written by hand: Node makes keys and signatures, but no certificates.
import { generateKeyPairSync, sign } from 'node:crypto';

const der = (tag, ...parts) => {
  const body = Buffer.concat(parts.map((p) => Buffer.from(p)));
  const n = body.length;
  const length = n < 128 ? [n] : n < 256 ? [0x81, n] : [0x82, n >> 8, n & 255];
  return Buffer.concat([Buffer.from([tag, ...length]), body]);
};
const sequence = (...parts) => der(0x30, ...parts);
const integer = (n) => der(0x02, [n]); // below 128
const oid = (...bytes) => der(0x06, bytes);
const time = (at) => der(0x17, `${at.toISOString().replace(/[-:T]/g, '').slice(2, 14)}Z`);

const ecdsaWithSHA256 = sequence(oid(0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02));
const commonName = [0x55, 0x04, 0x03];
const subjectAltName = [0x55, 0x1d, 0x11];

const pem = (type, bytes) => `-----BEGIN ${type}-----\n${bytes.toString('base64').match(/.{1,64}/g).join('\n')}\n-----END ${type}-----\n`;

// certificate is for 127.0.0.1 and localhost, for an hour. serial is 1 to 127.
export function certificate(serial) {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const name = sequence(der(0x31, sequence(oid(...commonName), der(0x0c, `holdfast test ${serial}`))));
  const now = Date.now();
  const names = sequence(der(0x82, 'localhost'), der(0x87, [127, 0, 0, 1]));
  const signed = sequence(
    der(0xa0, integer(2)), integer(serial), ecdsaWithSHA256,
    name, sequence(time(new Date(now - 60_000)), time(new Date(now + 3_600_000))), name,
    publicKey.export({ type: 'spki', format: 'der' }),
    der(0xa3, sequence(sequence(oid(...subjectAltName), der(0x04, names)))),
  );
  const signature = der(0x03, [0], sign('sha256', signed, privateKey));
  return {
    cert: pem('CERTIFICATE', sequence(signed, ecdsaWithSHA256, signature)),
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }),
  };
}
