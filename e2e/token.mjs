// Tokens as an issuer of the outside makes them.
import { createHmac, randomBytes } from 'node:crypto';

export const newKey = () => randomBytes(32).toString('hex');
export const b64 = (value) => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url');
export const now = () => Math.floor(Date.now() / 1000);

// sign makes a token with the claims, valid for ten minutes unless they say otherwise.
export function sign(key, claims, alg = 'HS256') {
  const head = `${b64({ alg, typ: 'JWT' })}.${b64({ exp: now() + 600, ...claims })}`;
  return `${head}.${alg === 'none' ? '' : createHmac('sha256', key).update(head).digest('base64url')}`;
}
